"""Text -> token ids and mask. Texts of a batch are padded to the longest of them, so that they can
be computed together."""

import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_TOKENS = 256


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()

    def execute(self, requests: list[Any]) -> list[Any]:
        texts = [
            pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
            for request in requests
        ]
        flat = [text.decode("utf-8", "replace") for group in texts for text in group]
        encoded = self.tokenizer.encode_batch(flat)
        ids = np.array([entry.ids for entry in encoded], np.int64)
        mask = np.array([entry.attention_mask for entry in encoded], np.int64)
        responses, start = [], 0
        for group in texts:
            rows = slice(start, start + len(group))
            start += len(group)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("INPUT_IDS", ids[rows]), pb_utils.Tensor("MASK", mask[rows])]
                )
            )
        return responses
