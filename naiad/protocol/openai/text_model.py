"""OpenAI's routes for models that are no language model of ours: any model with a text input
`text_input` and a text output `text_output`, such as a Python model with its own language model.

In:  a GenerationCall, and the body that it was made from. Out: an InferRequest; its responses ->
     GenerationEvents.
Rule: a field of the body goes to the input of its name, if the model has one. What the model has no
      input for is refused by name, like everything else that would be lost.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from naiad.core.byte_strings import split_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import internal
from naiad.ipc.generation_call import CompletionPiece, GenerationCall, GenerationEvent
from naiad.protocol.openai.body import Body
from naiad.protocol.openai.error import OpenAiError, bad_request

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
_MESSAGES, _STREAM, _EXCLUDE = "messages", "stream", "exclude_input_in_output"
_COUNTS = ("num_input_tokens", "num_output_tokens")
_HANDLED = frozenset(
    {
        "model", "messages", "prompt", "input", "instructions", "stream", "stream_options",
        "metadata", "echo", "modalities", "parallel_tool_calls", "priority",
    }
)  # fmt: skip
"""Fields that mean the same for every model."""
_ALIASES = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "temperature": (1,), "top_p": (1,), "repetition_penalty": (1,),
    "response_format": ({"type": "text"},), "text": ({"format": {"type": "text"}},),
    "tool_choice": ("none", "auto"), "skip_special_tokens": (True,),
    "add_special_tokens": (True,), "add_generation_prompt": (True,),
}  # fmt: skip
"""Values that ask for nothing."""


def is_text_model(spec: ModelSpec) -> bool:
    """True if a text is all that the model needs. Inputs with the names of a body's fields may be
    there, but must be optional."""
    prompt, output = spec.inputs.get(TEXT_INPUT), spec.outputs.get(TEXT_OUTPUT)
    return (
        prompt is not None
        and output is not None
        and prompt.datatype == output.datatype == "BYTES"
        and prompt.dims in ([1], [-1], [])
        and all(
            one.is_optional or one.name in (TEXT_INPUT, _STREAM, _EXCLUDE)
            for one in spec.inputs.values()
        )
    )


def text_request(spec: ModelSpec, call: GenerationCall, body: Body, id: str = "") -> InferRequest:
    """Raises OpenAiError."""
    inputs = spec.inputs
    values: dict[str, Any] = _values(spec, body)
    if call.messages is not None and _MESSAGES in inputs:
        values[_MESSAGES] = msgspec.json.encode(call.messages).decode()
    if isinstance(call.prompt, list):
        raise bad_request("'prompt' holds tokens, this model takes text only", "prompt")
    if _MESSAGES not in values or not inputs[TEXT_INPUT].is_optional:
        prompt = call.prompt
        values[TEXT_INPUT] = chat_text(call.messages or []) if prompt is None else prompt
    if _STREAM in inputs:
        values[_STREAM] = call.is_streamed
    if _EXCLUDE in inputs:
        values[_EXCLUDE] = True
    return InferRequest(
        spec.name,
        [_tensor(inputs[name], value, spec) for name, value in values.items()],
        id=id,
        requested_outputs=[TEXT_OUTPUT, *(name for name in _COUNTS if name in spec.outputs)],
        priority=max(call.priority, 0),
    )


def chat_text(messages: list[dict[str, Any]]) -> str:
    """A chat as a text, for a model that takes no messages: the content of a single message, else a
    line for each with its role before it."""
    contents = [_content(message.get("content")) for message in messages]
    if len(messages) == 1:
        return contents[0]
    lines = [
        f"{message['role']}: {content}" for message, content in zip(messages, contents, strict=True)
    ]
    return "\n".join([*lines, "assistant:"])


def _content(content: Any) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise bad_request("'messages' holds content that is not text", "messages")
    return "".join(map(str, texts))


def _values(spec: ModelSpec, body: Body) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(type(body)):
        value = getattr(body, field.name)
        if value is None or field.name in _HANDLED:
            continue
        name = _ALIASES.get(field.name, field.name)
        if name in spec.inputs and name != TEXT_INPUT:
            values[name] = value
        elif not _is_neutral(field.name, value):
            raise bad_request(
                f"The model '{spec.name}' has no input '{name}', so '{field.name}' cannot be "
                "honoured; leave it out",
                field.name,
                "unsupported_parameter",
            )
    return values


def _is_neutral(name: str, value: Any) -> bool:
    return value in _NEUTRAL[name] if name in _NEUTRAL else not value


def _tensor(spec: TensorSpec, value: Any, model: ModelSpec) -> Tensor:
    """The value as the input's tensor: a number or a text, or a list of them. Raises
    OpenAiError."""
    entries = value if isinstance(value, list) else [value]
    if spec.datatype == "BYTES":
        texts = [one if isinstance(one, str) else msgspec.json.encode(one) for one in entries]
        flat = np.array(
            [text.encode() if isinstance(text, str) else text for text in texts], object
        )
    else:
        dtype = DATATYPES[spec.datatype].numpy
        if dtype is None:
            raise _wrong(spec, value)
        try:
            flat = np.array(entries, dtype)
        except (TypeError, ValueError, OverflowError):
            raise _wrong(spec, value) from None
    shape = [len(entries) if dim == -1 else dim for dim in spec.dims]
    if int(np.prod(shape)) != len(entries):
        raise _wrong(spec, value)
    return tensor_from_numpy(spec.name, flat.reshape([1] * (model.max_batch_size > 0) + shape))


def _wrong(spec: TensorSpec, value: Any) -> OpenAiError:
    return bad_request(
        f"'{spec.name}' does not fit the model's input, which is {spec.datatype} {spec.dims}",
        spec.name,
        "invalid_type",
    )


class TextEvents:
    """EventReader: reads the responses to the requests of one body. Each response is more text."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int]] = {}

    def read(self, index: int, outputs: list[Tensor]) -> GenerationEvent:
        found = {tensor.name: tensor for tensor in outputs}
        if TEXT_OUTPUT not in found:
            raise internal(f"the model's response has no output '{TEXT_OUTPUT}'")
        text = b"".join(split_byte_strings(found[TEXT_OUTPUT].data))
        num_input, num_output = (_count(found.get(name)) for name in _COUNTS)
        before = self._counts.get(index, (0, 0))
        self._counts[index] = max(before[0], num_input), before[1] + num_output
        return self._event(index, CompletionPiece(0, text.decode(errors="replace"), []))

    def end(self, index: int) -> GenerationEvent:
        return self._event(index, CompletionPiece(0, "", [], finish_reason="stop"))

    def _event(self, index: int, piece: CompletionPiece) -> GenerationEvent:
        num_input, num_output = self._counts.get(index, (0, 0))
        return GenerationEvent([piece], num_input, 0, num_output)


def _count(tensor: Tensor | None) -> int:
    return 0 if tensor is None else int(tensor.as_numpy().sum())
