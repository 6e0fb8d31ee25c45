"""The model postprocessing: decodes the tokens of the tensorrt_llm model to text.

Parameters: tokenizer_dir (a folder with tokenizer.json), skip_special_tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        folder = Path(parameters["tokenizer_dir"]["string_value"])
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        flag = parameters.get("skip_special_tokens", {}).get("string_value", "")
        self.skips_special_tokens = flag.lower() not in ("false", "0", "no")

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
        texts = [
            [
                self.tokenizer.decode(
                    row[:length].tolist(), skip_special_tokens=self.skips_special_tokens
                )
                for row, length in pairs
            ]
            for pairs in (
                zip(rows, row_lengths, strict=True)
                for rows, row_lengths in zip(tokens, lengths, strict=True)
            )
        ]
        encoded = [[text.encode() for text in row] for row in texts]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT", np.array(encoded, dtype=np.object_))]
        )
