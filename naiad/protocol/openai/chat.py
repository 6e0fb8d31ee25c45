"""POST /v1/chat/completions: a body -> a GenerationCall; its events -> one completion, or chunks of
a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from naiad.ipc.generation_call import CompletionPiece, GenerationCall, GenerationEvent, TokenLogprob
from naiad.protocol.openai.body import ChatBody
from naiad.protocol.openai.error import OpenAiError, bad_request
from naiad.protocol.openai.logprob import (
    ChatLogprobs,
    PromptLogprob,
    chat_logprobs,
    prompt_logprobs,
)
from naiad.protocol.openai.response_format import read_format
from naiad.protocol.openai.response_writer import (
    DONE,
    ChunkFrame,
    Usage,
    UsageCount,
    encode,
    encode_failure,
    new_id,
)
from naiad.protocol.openai.sampling import chat_sampling, num_kept, prompt_alternatives
from naiad.protocol.openai.tool_call import NamedCallReader, Reading, ToolCallReader, ToolDelta
from naiad.protocol.openai.tool_choice import ToolPlan, plan_tools


class FunctionPart(msgspec.Struct, omit_defaults=True):
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class CallPart(msgspec.Struct):
    index: int
    function: FunctionPart
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[CallPart] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class Function(msgspec.Struct):
    name: str
    arguments: str


class Call(msgspec.Struct):
    id: str
    function: Function
    type: str = "function"


class Message(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[Call] | UnsetType = UNSET


class Choice(msgspec.Struct):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str


class Completion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class Reader(Protocol):
    @property
    def num_calls(self) -> int: ...

    def feed(self, text: str) -> Reading: ...

    def finish(self) -> Reading: ...


def decode_call(
    body: ChatBody, plan: ToolPlan, defaults: Mapping[str, Any], *, is_streamed: bool
) -> GenerationCall:
    """Raises OpenAiError."""
    if body.functions is not None or body.function_call is not None:
        raise bad_request(
            "'functions' and 'function_call' are not supported, use 'tools' and 'tool_choice'",
            "function_call" if body.functions is None else "functions",
        )
    if body.modalities is not None and body.modalities != ["text"]:
        raise bad_request("'modalities' can only be [\"text\"]", "modalities")
    arguments = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", body.reasoning_effort)
    if body.documents is not None:
        arguments.setdefault("documents", body.documents)
    is_continued = bool(body.continue_final_message)
    if is_continued and body.add_generation_prompt:
        raise bad_request(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true",
            "continue_final_message",
        )
    return GenerationCall(
        messages=read_messages(body.messages),
        tools=plan.tools,
        template_arguments=arguments,
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt is not False and not is_continued,
        continue_final_message=is_continued,
        num_kept=num_kept(body),
        prompt_logprobs=prompt_alternatives(body),
        parameters=chat_sampling(body, defaults),
        grammar=plan.grammar or read_format(body),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        is_streamed=is_streamed,
    )


def read_plan(body: ChatBody) -> ToolPlan:
    return plan_tools(
        body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls is not False
    )


def read_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The message as a chat template reads it: no template knows the role `developer`, and
    templates add contents as strings without a check. Raises OpenAiError."""
    if not messages:
        raise bad_request("'messages' is empty, expected at least one message", "messages")
    found = []
    for at, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise bad_request(
                f"Missing required parameter: 'messages[{at}].role'.",
                f"messages[{at}].role",
                "missing_required_parameter",
            )
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise bad_request(
                f"Invalid type for 'messages[{at}].content'.",
                f"messages[{at}].content",
                "invalid_type",
            )
        changed = {**message, "content": "" if content is None else content}
        if message["role"] == "developer":
            changed["role"] = "system"
        found.append(changed)
    return found


class FirstCallReader:
    """A Reader for clients that want one call at a time: the calls after the first are dropped."""

    def __init__(self, reader: ToolCallReader) -> None:
        self._reader = reader

    @property
    def num_calls(self) -> int:
        return min(self._reader.num_calls, 1)

    def feed(self, text: str) -> Reading:
        return self._first(self._reader.feed(text))

    def finish(self) -> Reading:
        return self._first(self._reader.finish())

    def _first(self, reading: Reading) -> Reading:
        deltas = [delta for delta in reading.deltas if delta.index == 0]
        return Reading(reading.content, deltas)


def build_reader(plan: ToolPlan) -> Reader | None:
    match plan.mode:
        case "auto":
            reader = ToolCallReader(plan.names)
            return reader if plan.is_parallel else FirstCallReader(reader)
        case "required":
            return ToolCallReader(plan.names, is_forced=True)
        case "named":
            return NamedCallReader(plan.named)
    return None


def finish_reason(reason: str, reader: Reader | None, plan: ToolPlan) -> str:
    """The finish reason of a call; OpenAI says `stop` when the client itself named the function."""
    return (
        "tool_calls"
        if reason == "stop" and reader is not None and reader.num_calls and plan.mode != "named"
        else reason
    )


class StreamedChat:
    """A GenerationWriter."""

    def __init__(
        self,
        model: str,
        created_s: int,
        plan: ToolPlan,
        *,
        has_usage: bool,
        is_counted: bool = False,
    ) -> None:
        """`has_usage` asks for usage at the end, `is_counted` for that in every chunk as well."""
        self._frame = ChunkFrame(
            new_id("chatcmpl-"), "chat.completion.chunk", created_s, model, has_usage=has_usage
        )
        self._plan = plan
        self._usage = UsageCount() if has_usage else None
        self._is_counted = is_counted
        self._readers: dict[int, Reader | None] = {}

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        if self._usage is not None:
            self._usage.add(call_index, event)
            if self._is_counted:
                self._frame.show(self._usage.total())
        return b"".join([chunk for piece in event.pieces for chunk in self._chunks(piece)])

    def end(self) -> bytes:
        return DONE if self._usage is None else self._frame.usage_chunk(self._usage.total()) + DONE

    def fail(self, error: OpenAiError) -> bytes:
        return encode_failure(error)

    def _chunks(self, piece: CompletionPiece) -> list[bytes]:
        chunk, chunks = self._frame.chunk, []
        if piece.index not in self._readers:
            self._readers[piece.index] = build_reader(self._plan)
            chunks.append(chunk(ChunkChoice(piece.index, Delta(role="assistant", content=""))))
        reader = self._readers[piece.index]
        reading = Reading(piece.text) if reader is None else reader.feed(piece.text)
        logprobs = chat_logprobs(piece.logprobs) if piece.logprobs else None
        if reading.content or (logprobs is not None and not reading.deltas):
            chunks.append(chunk(ChunkChoice(piece.index, Delta(content=reading.content), logprobs)))
            logprobs = None
        if reading.deltas:
            chunks.append(
                chunk(
                    ChunkChoice(
                        piece.index, Delta(tool_calls=_call_parts(reading.deltas)), logprobs
                    )
                )
            )
        if piece.finish_reason is not None:
            rest = Reading() if reader is None else reader.finish()
            if rest.content:
                chunks.append(chunk(ChunkChoice(piece.index, Delta(content=rest.content))))
            if rest.deltas:
                chunks.append(
                    chunk(ChunkChoice(piece.index, Delta(tool_calls=_call_parts(rest.deltas))))
                )
            reason = finish_reason(piece.finish_reason, reader, self._plan)
            chunks.append(chunk(ChunkChoice(piece.index, Delta(), finish_reason=reason)))
        return chunks


def _call_parts(deltas: list[ToolDelta]) -> list[CallPart]:
    return [
        CallPart(delta.index, FunctionPart(delta.arguments))
        if delta.id is None
        else CallPart(
            delta.index, FunctionPart(delta.arguments, delta.name or ""), delta.id, "function"
        )
        for delta in deltas
    ]


class _Draft(msgspec.Struct):
    text: str = ""
    logprobs: list[TokenLogprob] = []
    finish_reason: str = ""


class WholeChat:
    """A GenerationWriter."""

    def __init__(self, model: str, created_s: int, plan: ToolPlan) -> None:
        self._model = model
        self._created_s = created_s
        self._plan = plan
        self._usage = UsageCount()
        self._drafts: dict[int, _Draft] = {}
        self._prompt: list[TokenLogprob] | None = None

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        self._usage.add(call_index, event)
        for piece in event.pieces:
            draft = self._drafts.setdefault(piece.index, _Draft())
            self._prompt = self._prompt or piece.prompt_logprobs
            draft.text += piece.text
            draft.logprobs += piece.logprobs or []
            draft.finish_reason = piece.finish_reason or draft.finish_reason
        return b""

    def end(self) -> bytes:
        choices = [self._choice(index, draft) for index, draft in sorted(self._drafts.items())]
        completion = Completion(
            new_id("chatcmpl-"),
            "chat.completion",
            self._created_s,
            self._model,
            choices,
            self._usage.total(),
            UNSET if self._prompt is None else prompt_logprobs(self._prompt),
        )
        return encode(completion)

    def fail(self, error: OpenAiError) -> bytes:
        return b""  # a call has no text before it is complete

    def _choice(self, index: int, draft: _Draft) -> Choice:
        reader = build_reader(self._plan)
        message = (
            Message("assistant", draft.text)
            if reader is None
            else _read_message(reader, draft.text)
        )
        logprobs = chat_logprobs(draft.logprobs) if draft.logprobs else None
        return Choice(
            index, message, logprobs, finish_reason(draft.finish_reason, reader, self._plan)
        )


def _read_message(reader: Reader, text: str) -> Message:
    content, calls = collect_calls([reader.feed(text), reader.finish()])
    if not calls:
        return Message("assistant", content)
    return Message("assistant", content or None, tool_calls=calls)


def collect_calls(readings: list[Reading]) -> tuple[str, list[Call]]:
    calls: list[Call] = []
    for reading in readings:
        for delta in reading.deltas:
            if delta.id is not None:
                calls.append(Call(delta.id, Function(delta.name or "", delta.arguments)))
            else:
                calls[delta.index].function.arguments += delta.arguments
    return "".join(reading.content for reading in readings), calls
