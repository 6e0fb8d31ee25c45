"""Language models behind Triton's protocol: converts prompts to tensors, responses to TokenChunks.

Known inputs are text_input (or the only string input), max_tokens, request_output_len, stream or
streaming, sampling_parameters (the vLLM backend's JSON), return_num_input_tokens and
return_num_output_tokens. Other inputs need --extra-inputs or --input-data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from naiad.core.byte_strings import encode_byte_strings, split_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.perf.data.dataset import Dataset, Step, TensorValue
from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.perf.data.prompts import Prompt
from naiad.perf.load.load import ResponseFailureError
from naiad.perf.measure.token_metrics import TokenChunk
from naiad.perf.report.failure_text import one_line
from naiad.settings.option import OptionError

_SWITCHES = (
    "stream",
    "streaming",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "exclude_input_in_output",
)
_LIMITS = ("max_tokens", "request_output_len", "sampling_param_max_tokens")


def prompt_dataset(
    facts: ModelFacts, prompts: list[Prompt], extra: dict[str, Any], *, is_streaming: bool
) -> Dataset:
    """Builds a dataset of prompts. Raises OptionError.

    A value of `extra` (--extra-inputs) is sent as the tensor of that name, or in
    sampling_parameters if the model has no such tensor.
    """
    text_input = _text_input(facts)
    steps: list[Step] = []
    for prompt in prompts:
        step = {text_input.name: _value(text_input, prompt.text)}
        sampling = {name: value for name, value in extra.items() if facts.input(name) is None}
        for tensor in facts.inputs:
            if tensor.name in extra:
                step[tensor.name] = _value(tensor, extra[tensor.name])
            elif tensor.name in _LIMITS and prompt.max_tokens:
                step[tensor.name] = _value(tensor, prompt.max_tokens)
            elif tensor.name in _SWITCHES and tensor.datatype == "BOOL":
                is_on = is_streaming if tensor.name.startswith("stream") else True
                step[tensor.name] = _value(tensor, is_on)
            elif tensor.name == "sampling_parameters":
                limit = {"max_tokens": prompt.max_tokens} if prompt.max_tokens else {}
                step[tensor.name] = _value(tensor, json.dumps(limit | sampling))
        missing = [
            tensor.name
            for tensor in facts.inputs
            if not tensor.is_optional and tensor.name not in step
        ]
        if missing:
            raise OptionError(
                f"model '{facts.name}' requires the input '{missing[0]}'. Set it with"
                f" --extra-inputs {missing[0]}:VALUE"
            )
        steps.append(step)
    return Dataset([steps], is_from_file=True)


def _text_input(facts: ModelFacts) -> TensorFacts:
    named = facts.input("text_input")
    strings = [
        tensor for tensor in facts.inputs if tensor.datatype == "BYTES" and not tensor.is_optional
    ]
    if named is None and len(strings) != 1:
        raise OptionError(
            f"model '{facts.name}' has no input 'text_input' for a prompt. Use --input-data."
        )
    return named or strings[0]


def _value(tensor: TensorFacts, value: Any) -> TensorValue:
    shape = tuple(1 if dimension < 0 else dimension for dimension in tensor.shape)
    if tensor.datatype == "BYTES":
        return TensorValue(
            shape, encode_byte_strings([value if isinstance(value, str) else json.dumps(value)])
        )
    return TensorValue(shape, np.array([value], DATATYPES[tensor.datatype].numpy).tobytes())


def make_message_digest(*, keeps_text: bool, keeps_raw: bool) -> Callable[[Any], TokenChunk]:
    """Returns a function that reads a ModelInferResponse of a gRPC stream."""

    def digest(response: Any) -> TokenChunk:
        text, prompt_tokens, completion_tokens = "", -1, -1
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name == "num_input_tokens" and raw:
                prompt_tokens = int.from_bytes(raw[:4], "little")
            elif output.name == "num_output_tokens" and raw:
                completion_tokens = int.from_bytes(raw[:4], "little")
            elif output.datatype == "BYTES" and not text:
                text = b"".join(split_byte_strings(raw)).decode("utf-8", "replace")
        return TokenChunk(
            int(bool(text)),
            prompt_tokens,
            completion_tokens,
            text if keeps_text else "",
            response if keeps_raw else b"",
        )

    return digest


class _Generated(msgspec.Struct):
    text_output: Any = None
    error: str | None = None
    num_input_tokens: int = -1
    num_output_tokens: int = -1


_decode = msgspec.json.Decoder(_Generated).decode


def make_generate_digest(*, keeps_text: bool, keeps_raw: bool) -> Callable[[Any], TokenChunk]:
    """Returns a function that reads an event of generate_stream."""

    def digest(event: Any) -> TokenChunk:
        body: bytes = event[1] if isinstance(event, tuple) else event
        try:
            decoded = _decode(body)
        except msgspec.DecodeError as error:
            raise ResponseFailureError(
                one_line(f"a response that cannot be decoded: {error}")
            ) from None
        if decoded.error is not None:
            raise ResponseFailureError(one_line(decoded.error))
        output = decoded.text_output
        text = "".join(map(str, output)) if isinstance(output, list) else str(output or "")
        return TokenChunk(
            int(bool(text)),
            decoded.num_input_tokens,
            decoded.num_output_tokens,
            text if keeps_text else "",
            body if keeps_raw else b"",
        )

    return digest
