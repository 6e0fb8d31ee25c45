"""The model preprocessing: encodes text to tokens for the tensorrt_llm model.

Parameters: tokenizer_dir (a folder with tokenizer.json), add_special_tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import triton_python_backend_utils as pb_utils

INT32_OUTPUTS = (
    "INPUT_ID",
    "REQUEST_INPUT_LEN",
    "REQUEST_OUTPUT_LEN",
    "OUT_END_ID",
    "OUT_PAD_ID",
    "BAD_WORDS_IDS",
    "STOP_WORDS_IDS",
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        folder = Path(parameters["tokenizer_dir"]["string_value"])
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        flag = parameters.get("add_special_tokens", {}).get("string_value", "")
        self.adds_special_tokens = flag.lower() in ("true", "1", "yes")
        self.end_id = read_end_id(folder)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.respond(request) for request in requests]

    def respond(self, request: Any) -> Any:
        queries = column(request, "QUERY") or []
        if len(queries) != 1:
            return pb_utils.InferenceResponse(
                [],
                pb_utils.TritonError(f"QUERY has {len(queries)} texts, expected one per request"),
            )
        tokens = self.encode(queries[0].decode(), self.adds_special_tokens)
        values: dict[str, Any] = {
            "INPUT_ID": [tokens],
            "REQUEST_INPUT_LEN": [[len(tokens)]],
            "REQUEST_OUTPUT_LEN": [column(request, "REQUEST_OUTPUT_LEN")],
            "OUT_END_ID": [column(request, "END_ID") or [self.end_id]],
            "OUT_PAD_ID": [column(request, "PAD_ID") or [self.end_id]],
            "BAD_WORDS_IDS": [self.words(column(request, "BAD_WORDS_DICT"))],
            "STOP_WORDS_IDS": [self.words(column(request, "STOP_WORDS_DICT"))],
        }
        outputs = [
            pb_utils.Tensor(name, np.array(values[name], np.int32)) for name in INT32_OUTPUTS
        ]
        outputs.append(pb_utils.Tensor("EMBEDDING_BIAS", self.bias(request)))
        return pb_utils.InferenceResponse(outputs)

    def encode(self, text: str, adds_special_tokens: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=adds_special_tokens).ids)

    def words(self, texts: list[bytes] | None) -> list[list[int]]:
        """Returns the tokens of all words in a row, and the end offset of each word, padded with
        -1."""
        tokens: list[int] = []
        ends: list[int] = []
        for text in texts or []:
            if text:
                tokens += self.encode(text.decode())
                ends.append(len(tokens))
        if not tokens:
            return [[0], [-1]]
        return [tokens, ends + [-1] * (len(tokens) - len(ends))]

    def bias(self, request: Any) -> Any:
        words, weights = (
            column(request, "EMBEDDING_BIAS_WORDS") or [],
            column(request, "EMBEDDING_BIAS_WEIGHTS") or [],
        )
        if not words:
            return np.zeros((1, 0), np.float32)
        bias = np.zeros((1, self.tokenizer.get_vocab_size()), np.float32)
        for word, weight in zip(words, weights, strict=True):
            bias[0, self.encode(word.decode())] += weight
        return bias


def column(request: Any, name: str) -> list[Any] | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else list(tensor.as_numpy().ravel().tolist())


def read_end_id(folder: Path) -> int:
    """Returns eos_token_id of generation_config.json or else config.json; -1 if neither has it."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        end = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if end is not None:
            return int(end[0] if isinstance(end, list) else end)
    return -1
