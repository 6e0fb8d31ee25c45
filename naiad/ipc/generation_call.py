"""How the server's own endpoints call a language model of any backend (llm, vllm, tensorrtllm): one
struct in, events out.

In:  a GenerationCall, packed by `generation_request` into an ordinary InferRequest for
     InferenceCore.infer.
Out: responses with one tensor each, read by `read_event`: what each completion of the request has
     gained since the last event.
Rule: nothing here imports torch; the worker does tokenizing, templates and grammars.
"""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.tensor import Tensor
from naiad.errors import internal, invalid_arg
from naiad.llm.parameters import (
    MAX_LOGPROBS,
    MAX_SALT_CHARACTERS,
    SamplingParameters,
    check_integer,
    shown,
)

LANGUAGE_BACKENDS = frozenset({"llm", "vllm", "tensorrtllm"})
"""The values of `backend` in configs of models that accept these calls."""
CALL_PARAMETER = "naiad_generation"
"""The name of the request parameter that holds the call, and of the one output of its responses."""


GRAMMAR_KINDS = ("json_object", "json_schema", "regex", "ebnf", "structural_tag")
MAX_GRAMMAR_CHARACTERS = 64 << 10


class GrammarCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The grammar that the generated text must follow."""

    kind: str
    """json_object, json_schema, regex, ebnf or structural_tag."""
    value: str = ""
    """The schema (JSON text), expression or grammar; empty for json_object."""

    def check(self) -> None:
        """Raises NaiadError."""
        if self.kind not in GRAMMAR_KINDS:
            raise invalid_arg(
                f"grammar kind is '{self.kind[:40]}', expected one of {', '.join(GRAMMAR_KINDS)}"
            )
        if len(self.value) > MAX_GRAMMAR_CHARACTERS:
            raise invalid_arg(
                f"the {self.kind} of the request has {len(self.value)} characters, "
                f"expected at most {MAX_GRAMMAR_CHARACTERS}"
            )


class GenerationCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Has exactly one of prompt and messages. A request with a wrong call fails with
    INVALID_ARG."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    """As in OpenAI's chat API; rendered by the checkpoint's chat template."""
    tools: list[dict[str, Any]] | None = None
    """Passed to the template, as in OpenAI's request."""
    template_arguments: dict[str, Any] = {}
    """More variables for the template, e.g. enable_thinking."""
    chat_template: str | None = None
    """Replaces the checkpoint's template."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The prompt ends with the content of the last message, which the model goes on writing."""
    num_kept: int = 0
    """Only the last tokens of the prompt are kept; 0 keeps all."""
    add_special_tokens: bool = True
    """Holds for a text prompt. The output of a template has special tokens already."""
    parameters: SamplingParameters = SamplingParameters()
    prompt_logprobs: int | None = None
    """Number of alternatives reported with each token of the prompt; None reports nothing."""
    grammar: GrammarCall | None = None
    priority: int = 0
    cache_salt: str = ""
    group: str = ""
    """Calls of one client request have the same group; together they get one share of the
    engine."""
    is_streamed: bool = True
    """False means one event, with everything, at the end."""

    def check(self) -> None:
        """Checks everything that does not depend on the model. Raises NaiadError."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid_arg("expected either a prompt or messages")
        self.parameters.check_ranges()
        check_integer("priority", self.priority)
        if self.prompt_logprobs is not None and not 0 <= self.prompt_logprobs <= MAX_LOGPROBS:
            raise invalid_arg(
                f"prompt_logprobs is {shown(self.prompt_logprobs)}, expected 0 to {MAX_LOGPROBS}"
            )
        if len(self.cache_salt) > MAX_SALT_CHARACTERS:
            raise invalid_arg(
                f"cache_salt has {len(self.cache_salt)} characters, "
                f"expected at most {MAX_SALT_CHARACTERS}"
            )
        if self.grammar is not None:
            self.grammar.check()


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    text: str
    """U+FFFD where the token is a part of a character; `raw` has its bytes."""
    raw: bytes
    logprob: float
    top: list[TokenLogprob] = []
    """The most probable tokens at this position, best first. Their own `top` is empty."""


class CompletionPiece(msgspec.Struct, array_like=True):
    """What one of the n completions has gained."""

    index: int
    text: str
    token_ids: list[int]
    """May be more than `text` shows, because half a character or a possible stop string is held
    back."""
    logprobs: list[TokenLogprob] | None = None
    """One for each of token_ids, if requested."""
    finish_reason: str | None = None
    """`stop` or `length`. An error ends the whole request with an error response instead."""
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for end of sequence."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """One for each token of the prompt, if requested: with the first piece of completion 0. The
    first token follows nothing."""


class GenerationEvent(msgspec.Struct, array_like=True):
    pieces: list[CompletionPiece]
    num_prompt_tokens: int
    num_cached_tokens: int
    """Tokens of the prompt that were in the prefix cache."""
    num_output_tokens: int
    """Tokens of all completions together, up to now."""


_CALL_ENCODER = msgspec.json.Encoder()
_CALL_DECODER = msgspec.json.Decoder(GenerationCall)
_EVENT_ENCODER = msgspec.msgpack.Encoder()
_EVENT_DECODER = msgspec.msgpack.Decoder(GenerationEvent)


def generation_request(
    spec: ModelSpec, call: GenerationCall, id: str = "", model_version: str = ""
) -> InferRequest:
    """The inputs that the model's config requires are present but empty, because the call contains
    everything. Raises NaiadError if a value is out of range."""
    call.check()
    inputs = [
        _blank(tensor, spec.max_batch_size > 0)
        for tensor in spec.inputs.values()
        if not tensor.is_optional
    ]
    parameters: dict[str, ParameterValue] = {CALL_PARAMETER: _CALL_ENCODER.encode(call).decode()}
    return InferRequest(
        spec.name, inputs, model_version, id, parameters=parameters, priority=max(call.priority, 0)
    )


def _blank(tensor: TensorSpec, is_batched: bool) -> Tensor:
    shape = [1] * is_batched + [1 if dim == -1 else dim for dim in tensor.dims]
    count = prod(shape)
    data = (
        encode_byte_strings([b""] * count)
        if tensor.datatype == "BYTES"
        else bytes(count * DATATYPES[tensor.datatype].byte_size)
    )
    return Tensor(tensor.name, tensor.datatype, shape, data)


def read_call(text: str) -> GenerationCall:
    """Raises NaiadError."""
    try:
        call = _CALL_DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise invalid_arg(f"'{CALL_PARAMETER}' cannot be read: {error}") from None
    call.check()
    return call


def event_tensor(event: GenerationEvent) -> Tensor:
    data = _EVENT_ENCODER.encode(event)
    return Tensor(CALL_PARAMETER, "UINT8", [len(data)], data)


def read_event(outputs: list[Tensor]) -> GenerationEvent:
    for tensor in outputs:
        if tensor.name == CALL_PARAMETER:
            return _EVENT_DECODER.decode(tensor.data)
    raise internal("the response is not from a language model of this server")
