"""Every field that OpenAI's client and vLLM's server publish for a route is honoured, is harmless
by definition, or is a 400 that names it. No field is ignored in silence."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest

from naiad.frontends.openai.frontend import read_stream
from naiad.protocol.openai import chat, completion, response_input
from naiad.protocol.openai.body import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    ResponsesBody,
    decode_body,
)
from naiad.protocol.openai.embedding import read_inputs
from naiad.protocol.openai.error import OpenAiError
from naiad.protocol.openai.fields import HARMLESS

# vLLM's main of 2026-08-22, a014e35f38c: the request classes of vllm/entrypoints.
VLLM_BOTH = """
    frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop
    stream stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty
    length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
    prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_special_tokens
    structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
"""
VLLM_CHAT = """
    top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
    parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
    chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
    return_assistant_tokens_mask
"""
VLLM_RESPONSES = """
    background include instructions max_output_tokens max_tool_calls metadata logit_bias
    parallel_tool_calls previous_response_id prompt reasoning include_reasoning service_tier store
    stream temperature text tool_choice tools top_logprobs top_p top_k truncation user
    skip_special_tokens include_stop_str_in_output presence_penalty frequency_penalty
    prompt_cache_key request_id session_id media_io_kwargs mm_processor_kwargs priority cache_salt
    enable_response_messages previous_input_messages structured_outputs repetition_penalty seed
    stop ignore_eos vllm_xargs kv_transfer_params ec_transfer_params chat_template_kwargs
"""
VLLM_EMBEDDINGS = """
    user truncate_prompt_tokens truncation_side request_id priority mm_processor_kwargs cache_salt
    add_special_tokens dimensions use_activation encoding_format embed_dtype endianness messages
"""
OLD_VLLM = "guided_json guided_regex guided_choice guided_grammar guided_decoding_backend \
guided_whitespace_pattern best_of"
PUBLISHED = {
    ChatBody: f"{VLLM_BOTH} {VLLM_CHAT} {OLD_VLLM}",
    CompletionBody: f"{VLLM_BOTH} {OLD_VLLM} prompt_embeds suffix",
    ResponsesBody: VLLM_RESPONSES,
    EmbeddingBody: VLLM_EMBEDDINGS,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
BASE: dict[type, dict[str, Any]] = {
    ChatBody: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionBody: {"prompt": "Hi"},
    ResponsesBody: {"input": "Hi"},
    EmbeddingBody: {"input": "Hi"},
}
NEEDED: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "stream_options": {"stream": True},
}
"""Fields without which another field means nothing."""
ASKING: dict[str, Any] = {
    "logit_bias": {"5": 1.0}, "response_format": {"type": "json_object"}, "stop": "x",
    "stream_options": {"include_usage": True}, "temperature": 0.3, "top_p": 0.4, "min_p": 0.1,
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.5,
    "length_penalty": 2.0, "stop_token_ids": [5], "bad_words": ["x"], "skip_special_tokens": False,
    "spaces_between_special_tokens": False, "include_reasoning": False,
    "structured_outputs": {"choice": ["yes", "no"]}, "guided_json": {"type": "object"},
    "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": "root ::= [a]",
    "guided_decoding_backend": "xgrammar", "guided_whitespace_pattern": "x", "tools": [TOOL],
    "tool_choice": "required", "reasoning_effort": "low", "parallel_tool_calls": False,
    "add_generation_prompt": False, "documents": [{"title": "a"}], "chat_template": "x",
    "chat_template_kwargs": {"a": 1}, "cache_salt": "x", "truncation": "auto",
    "truncation_side": "left", "text": {"format": {"type": "json_object"}},
    "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "instructions": "x", "user": "x",
    "include": ["message.output_text.logprobs"], "previous_response_id": "x", "suffix": "x",
    "modalities": ["audio"], "functions": [], "function_call": "auto", "conversation": "x",
    "encoding_format": "int8", "dimensions": 5, "service_tier": "auto", "verbosity": "low",
    "add_special_tokens": None, "prompt_cache_retention": "24h", "embed_dtype": "float16",
    "endianness": "big",
}  # fmt: skip
"""A value that asks for something; fields that are not here get a number, 7."""


def published() -> list[tuple[type, str]]:
    found = {(kind, name) for kind, names in PUBLISHED.items() for name in names.split()}
    try:
        from openai.types import completion_create_params as plain
        from openai.types import embedding_create_params as embedding
        from openai.types.chat import completion_create_params as chats
        from openai.types.responses import response_create_params as responses
    except ImportError:
        pass
    else:
        for kind, params in (
            (ChatBody, chats.CompletionCreateParamsBase),
            (CompletionBody, plain.CompletionCreateParamsBase),
            (ResponsesBody, responses.ResponseCreateParamsBase),
            (EmbeddingBody, embedding.EmbeddingCreateParams),
        ):
            found |= {(kind, name) for name in typing.get_type_hints(params)}
    return sorted(
        ((kind, name) for kind, name in found if name != "model" and name not in BASE[kind]),
        key=str,
    )


def understood(kind: Any, fields: dict[str, Any]) -> Any:
    """Everything that the server makes of a body. Raises OpenAiError."""
    body = decode_body(msgspec.json.encode({"model": "m", **BASE[kind], **fields}), kind)
    if kind is ChatBody:
        plan = chat.read_plan(body)
        return read_stream(body), plan, chat.decode_call(body, plan, {}, is_streamed=False)
    if kind is CompletionBody:
        calls = completion.decode_calls(body, {}, is_streamed=False)
        return read_stream(body), completion.echoes(body, calls), calls
    if kind is ResponsesBody:
        plan = response_input.read_plan(body)
        call = response_input.decode_call(body, plan, {}, is_streamed=False)
        return body.stream, body.metadata, plan, call
    return read_inputs(body), body.encoding_format, body.dimensions


def asking(kind: type, name: str) -> dict[str, Any]:
    value = ASKING.get(name, 7)
    if name == "add_special_tokens":
        value = kind is ChatBody  # what is not the default
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    if types.get(name) == bool | None and name not in ASKING:
        value = True
    return {name: value}


@pytest.mark.parametrize(
    ("kind", "name"), published(), ids=lambda one: one if isinstance(one, str) else one.__name__
)
def test_a_published_field_is_honoured_harmless_or_refused_by_name(kind: type, name: str) -> None:
    needed = NEEDED.get(name, {}) if kind is not CompletionBody else {}
    needed = NEEDED[name] if name == "stream_options" and kind is not ResponsesBody else needed
    if name == "top_logprobs" and kind is ResponsesBody:
        needed = {}
    if name == "continue_final_message":
        needed = {"messages": [{"role": "assistant", "content": "So"}]}
    without = understood(kind, needed)
    refusal: OpenAiError | None = None
    try:
        found = understood(kind, {**needed, **asking(kind, name)})
    except OpenAiError as error:
        refusal = error
    if refusal is not None:
        assert (refusal.status, name in refusal.message) == (400, True), refusal.message
        assert name in str(refusal.param), refusal.message
    else:
        is_ignored = name in HARMLESS and name not in kind.__annotations__
        assert (found == without) == is_ignored, name


@pytest.mark.parametrize("kind", BASE)
def test_a_field_that_nobody_has_heard_of_is_refused_by_name(kind: type) -> None:
    with pytest.raises(OpenAiError, match="'max_tokns' is not supported here") as caught:
        understood(kind, {"max_tokns": 5})
    assert (caught.value.status, caught.value.param) == (400, "max_tokns")


@pytest.mark.parametrize("kind", BASE)
def test_fields_that_are_null_or_have_their_default_ask_for_nothing(kind: type) -> None:
    neutral: dict[str, Any] = {
        "max_tokns": None, "use_beam_search": False, "allowed_token_ids": [],
        "kv_transfer_params": {},
        "include_reasoning": True, "thinking_token_budget": -1, "verbosity": "medium",
        "routed_experts_prompt_start": 0, "spaces_between_special_tokens": True,
    }  # fmt: skip
    assert understood(kind, neutral) == understood(kind, {})


def test_fields_are_checked_beside_ones_that_are_ignored() -> None:
    with pytest.raises(OpenAiError, match="Invalid type for 'temperature'"):
        understood(ChatBody, {"user": "x", "temperature": "hot"})
    with pytest.raises(OpenAiError, match="Missing required parameter: 'model'"):
        decode_body(b'{"user": "x", "prompt": "x"}', CompletionBody)


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ({"json": {"type": "object"}}, "json_schema", '{"type":"object"}'),
        ({"json": '{"type": "object"}'}, "json_schema", '{"type": "object"}'),
        ({"regex": "a|b"}, "regex", "a|b"),
        ({"choice": ["yes", "n.o"]}, "regex", "(yes)|(n\\.o)"),
        ({"grammar": "root ::= [a]"}, "ebnf", "root ::= [a]"),
        ({"json_object": True}, "json_object", ""),
        ({"structural_tag": "{}", "regex": None}, "structural_tag", "{}"),
    ],
)
def test_structured_outputs_mean_what_they_mean_in_vllm(
    given: dict[str, Any], kind: str, value: str
) -> None:
    for body, where in ((ChatBody, 2), (CompletionBody, 2), (ResponsesBody, 3)):
        found = understood(body, {"structured_outputs": given})[where]
        call = found[0] if isinstance(found, list) else found
        assert (call.grammar.kind, call.grammar.value) == (kind, value)


@pytest.mark.parametrize(
    "given",
    [
        {}, {"regex": "a", "choice": ["b"]}, {"choice": []}, {"regex": 5}, {"choice": "a"},
        {"regex": "a", "whitespace_pattern": "x"}, {"unheard_of": 1},
    ],
)  # fmt: skip
def test_wrong_structured_outputs_are_refused_by_name(given: dict[str, Any]) -> None:
    for kind in (ChatBody, CompletionBody, ResponsesBody):
        with pytest.raises(OpenAiError, match="structured_outputs"):
            understood(kind, {"structured_outputs": given})
