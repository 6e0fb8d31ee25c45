"""POST /v1/responses: the events of a generation -> a response with its output items, or a stream
of OpenAI's events about them.

A message opens with its first text and closes when a call begins; each call is an item of its own.
Rule: the same steps make both; a response that is not streamed drops the events.
"""

from __future__ import annotations

from typing import Any

from naiad.ipc.generation_call import GenerationEvent
from naiad.protocol.openai.body import ResponsesBody
from naiad.protocol.openai.chat import build_reader
from naiad.protocol.openai.error import OpenAiError
from naiad.protocol.openai.response_writer import UsageCount, encode, new_id
from naiad.protocol.openai.tool_call import Reading, ToolDelta
from naiad.protocol.openai.tool_choice import ToolPlan


class ResponseWriter:
    """A GenerationWriter."""

    def __init__(
        self, body: ResponsesBody, created_s: int, plan: ToolPlan, *, is_stream: bool
    ) -> None:
        self._is_stream = is_stream
        self._reader = build_reader(plan)
        self._usage = UsageCount()
        self._response = _new_response(body, created_s)
        self._output: list[dict[str, Any]] = self._response["output"]
        self._open: dict[str, Any] | None = None
        """The last item of the output while it is written."""
        self._sequence_number = 0
        self._events: list[bytes] = []

    def write(self, call_index: int, event: GenerationEvent) -> bytes:
        if not self._sequence_number:
            self._emit("response.created", response=self._response)
            self._emit("response.in_progress", response=self._response)
        self._usage.add(call_index, event)
        for piece in event.pieces:
            self._read(
                Reading(piece.text) if self._reader is None else self._reader.feed(piece.text)
            )
            if piece.finish_reason is not None:
                self._finish(piece.finish_reason)
        return self._taken()

    def end(self) -> bytes:
        usage = self._usage.total()
        self._response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }
        if not self._is_stream:
            return encode(self._response)
        self._emit(f"response.{self._response['status']}", response=self._response)
        return self._taken()

    def fail(self, error: OpenAiError) -> bytes:
        self._response |= {
            "status": "failed",
            "error": {"code": error.code or error.type, "message": error.message},
        }
        self._emit("response.failed", response=self._response)
        return self._taken()

    def _read(self, reading: Reading) -> None:
        if reading.content:
            self._add_text(reading.content)
        for delta in reading.deltas:
            self._add_call(delta)

    def _finish(self, reason: str) -> None:
        if self._reader is not None:
            self._read(self._reader.finish())
        is_cut = reason == "length"
        self._close("incomplete" if is_cut else "completed")
        if not self._output:  # a response without text is still a message
            self._open_message()
            self._close("incomplete" if is_cut else "completed")
        self._response["status"] = "incomplete" if is_cut else "completed"
        if is_cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}

    # Messages.

    def _add_text(self, text: str) -> None:
        if self._open is None or self._open["type"] != "message":
            self._close("completed")
            self._open_message()
        assert self._open is not None
        self._open["content"][0]["text"] += text
        self._emit_part("response.output_text.delta", self._open, delta=text, logprobs=[])

    def _open_message(self) -> None:
        item: dict[str, Any] = {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self._start(item)
        item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        self._emit_part("response.content_part.added", item, part=item["content"][0])

    def _emit_part(self, kind: str, item: dict[str, Any], **fields: Any) -> None:
        self._emit(
            kind, item_id=item["id"], output_index=len(self._output) - 1, content_index=0, **fields
        )

    # Calls.

    def _add_call(self, delta: ToolDelta) -> None:
        if delta.id is not None:
            self._close("completed")
            call = {
                "type": "function_call",
                "call_id": delta.id,
                "name": delta.name,
                "arguments": "",
                "status": "in_progress",
            }
            self._start({"id": new_id("fc_"), **call})
        if delta.arguments and self._open is not None:
            self._open["arguments"] += delta.arguments
            place = {"item_id": self._open["id"], "output_index": len(self._output) - 1}
            self._emit("response.function_call_arguments.delta", **place, delta=delta.arguments)

    # Items.

    def _start(self, item: dict[str, Any]) -> None:
        self._output.append(item)
        self._open = item
        self._emit("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _close(self, status: str) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            self._emit_part("response.output_text.done", item, text=part["text"], logprobs=[])
            self._emit_part("response.content_part.done", item, part=part)
        else:
            place = {"item_id": item["id"], "output_index": len(self._output) - 1}
            self._emit(
                "response.function_call_arguments.done",
                **place,
                name=item["name"],
                arguments=item["arguments"],
            )
        self._emit("response.output_item.done", output_index=len(self._output) - 1, item=item)

    # Events.

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._is_stream:
            data = encode({"type": kind, "sequence_number": self._sequence_number, **fields})
            self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._sequence_number += 1

    def _taken(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)


def _new_response(body: ResponsesBody, created_s: int) -> dict[str, Any]:
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": created_s,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": body.reasoning or {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": body.metadata or {},
    }
