"""The model tensorrt_llm_bls, which calls preprocessing, tensorrt_llm and postprocessing.

Parameters:
- tensorrt_llm_model_name: name of the tensorrt_llm model.
- accumulate_tokens: if true, each response of a stream contains the whole text so far. All tokens
  are decoded together, which is correct even for characters that consist of several tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
}
FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
}
TO_MODEL = {
    "num_return_sequences": "num_return_sequences",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "return_log_probs": "return_log_probs",
    "beam_width": "beam_width",
    "stream": "streaming",
}
RESULTS = ("cum_log_probs", "output_log_probs")


class CallFailed(Exception):  # noqa: N818 - the error response of a model, not a defect
    """One of the three models returned an error, which is passed on to the client."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.message())
        self.error = error


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.model_name = parameter(config, "tensorrt_llm_model_name", "tensorrt_llm")
        self.accumulates = parameter(config, "accumulate_tokens", "false").lower() in (
            "true",
            "1",
            "yes",
        )

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if not self.is_decoupled:
            return [self.single(request) for request in requests]
        for request in requests:
            self.stream(request)
        return None

    def single(self, request: Any) -> Any:
        try:
            responses = list(self.responses(request))
        except CallFailed as failure:
            return pb_utils.InferenceResponse([], failure.error)
        return responses[-1]

    def stream(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            for response in self.responses(request):
                if request.is_cancelled():
                    break
                sender.send(response)
        except CallFailed as failure:
            sender.send(pb_utils.InferenceResponse([], failure.error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def responses(self, request: Any) -> Iterator[Any]:
        prepared = call(
            "preprocessing",
            renamed(request, TO_PREPROCESSING),
            [*FROM_PREPROCESSING, "EMBEDDING_BIAS"],
        )
        inputs = [
            pb_utils.Tensor(name, prepared[source].as_numpy())
            for source, name in FROM_PREPROCESSING.items()
        ]
        bias = prepared["EMBEDDING_BIAS"].as_numpy()
        if bias.size:
            inputs.append(pb_utils.Tensor("embedding_bias", bias))
        inputs += renamed(request, TO_MODEL)
        inputs.append(pb_utils.Tensor("exclude_input_in_output", np.array([[True]])))
        tokens: list[list[int]] = []
        for outputs in self.generate(inputs):
            rows = [
                row[:length].tolist()
                for row, length in zip(
                    outputs["output_ids"][0], outputs["sequence_length"][0], strict=True
                )
            ]
            before = tokens if self.accumulates and tokens else [[]] * len(rows)
            tokens = [old + new for old, new in zip(before, rows, strict=True)]
            results = [pb_utils.Tensor(name, outputs[name]) for name in RESULTS if name in outputs]
            yield pb_utils.InferenceResponse([self.text(tokens), *results])

    def generate(self, inputs: list[Any]) -> Iterator[dict[str, Any]]:
        names = ["output_ids", "sequence_length", *RESULTS]
        inference = pb_utils.InferenceRequest(
            model_name=self.model_name, inputs=inputs, requested_output_names=names
        )
        responses = inference.exec(decoupled=True) if self.is_decoupled else [inference.exec()]
        for response in responses:
            if response.has_error():
                raise CallFailed(response.error())
            if response.output_tensors():
                yield {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def text(self, tokens: list[list[int]]) -> Any:
        width = max(map(len, tokens))
        padded = np.array([[row + [0] * (width - len(row)) for row in tokens]], np.int32)
        lengths = np.array([[len(row) for row in tokens]], np.int32)
        inputs = [
            pb_utils.Tensor("TOKENS_BATCH", padded),
            pb_utils.Tensor("SEQUENCE_LENGTH", lengths),
        ]
        return pb_utils.Tensor(
            "text_output", call("postprocessing", inputs, ["OUTPUT"])["OUTPUT"].as_numpy()
        )


def parameter(config: dict[str, Any], name: str, default: str) -> str:
    value: str = config["parameters"].get(name, {}).get("string_value", "")
    return default if not value or value.startswith("${") else value


def renamed(request: Any, names: dict[str, str]) -> list[Any]:
    """Returns the request's inputs that are in `names`, under their new names."""
    tensors = []
    for name, new_name in names.items():
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is not None:
            tensors.append(pb_utils.Tensor(new_name, tensor.as_numpy()))
    return tensors


def call(model_name: str, inputs: list[Any], outputs: list[str]) -> dict[str, Any]:
    response = pb_utils.InferenceRequest(
        model_name=model_name, inputs=inputs, requested_output_names=outputs
    ).exec()
    if response.has_error():
        raise CallFailed(response.error())
    return {tensor.name(): tensor for tensor in response.output_tensors()}
