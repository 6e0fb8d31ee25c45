"""Tool calls in the text that a model writes, piece by piece -> OpenAI's deltas. The text shows its
format, so nobody has to configure one.

    Hermes, Qwen   text <tool_call>{"name": "f", "arguments": {...}}</tool_call> <tool_call>...
    Llama 3        {"name": "f", "parameters": {...}}; {...}      perhaps after <|python_tag|>
    Mistral        [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]   or
                   [TOOL_CALLS]f[ARGS]{...}; the marker may have been skipped
Rules: arguments are sent as they come; text that may still become a call is held back; text that
       does not become a call is content.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.protocol.openai.json_end import JsonEnd

MAX_HEAD_CHARACTERS = 4096
"""An object that is longer than this and does not look like a call is text."""
_MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_SKIPPED = (*_MARKERS, "</tool_call>", "[ARGS]")
_HEAD = re.compile(
    r'\{\s*(?:"(?:type|id)"\s*:\s*"[^"]*"\s*,\s*)*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\S)'
)
_ID_CHARACTERS = string.ascii_letters + string.digits


class ToolDelta(msgspec.Struct):
    """A piece of a call. The first piece of each call has `id` and `name`, the further ones have
    the JSON text of the arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Reading(msgspec.Struct):
    content: str = ""
    deltas: list[ToolDelta] = []


def new_call_id() -> str:
    """Nine letters and digits, because Mistral's templates accept nothing else."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


class NamedCallReader:
    """Reads a text that consists of the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.num_calls = 0

    def feed(self, text: str) -> Reading:
        deltas = [] if self.num_calls else [ToolDelta(0, new_call_id(), self._name)]
        self.num_calls = 1
        if text:
            deltas.append(ToolDelta(0, arguments=text))
        return Reading("", deltas)

    def finish(self) -> Reading:
        return self.feed("") if not self.num_calls else Reading()


class ToolCallReader:
    def __init__(self, names: frozenset[str], *, is_forced: bool = False) -> None:
        """`is_forced` means that the text consists of calls only."""
        self.num_calls = 0
        self._names = names
        self._buffer = ""
        self._content = ""
        self._deltas: list[ToolDelta] = []
        self._has_content = False
        self._is_bare = not is_forced
        """True when no marker announced the object that is being read."""
        self._is_enclosed = False
        """True when the arguments are a field of an object that must end too."""
        self._end = JsonEnd()
        self._end_is_outer = False
        """True when `_end` looks for the end of the enclosing object, not of the arguments."""
        self._step: Callable[[], bool] = self._read_between if is_forced else self._read_text

    def feed(self, text: str) -> Reading:
        self._buffer += text
        while self._step():
            pass
        return self._taken()

    def finish(self) -> Reading:
        """The end of the text: what was held back is what it looks like."""
        if self._step == self._read_string:
            self._add_arguments(self._buffer)
        elif self._step != self._read_between or not self._is_separator():
            self._content += self._buffer
        self._buffer = ""
        return self._taken()

    def _is_separator(self) -> bool:
        rest = self._buffer.strip(" \n\r\t,;[]")
        return not rest or any(marker.startswith(self._buffer) for marker in _SKIPPED)

    def _taken(self) -> Reading:
        reading = Reading(self._content, self._deltas)
        self._content, self._deltas = "", []
        return reading

    # Each step reads from the front of the buffer; it returns True when the next may find more.

    def _read_text(self) -> bool:
        if not self._has_content and (found := self._read_start()) is not None:
            return found
        starts = [(at, marker) for marker in _MARKERS if (at := self._buffer.find(marker)) >= 0]
        if starts:
            at, marker = min(starts)
            self._add_content(self._buffer[:at])
            self._buffer = self._buffer[at + len(marker) :]
            self._is_bare = False
            return self._go(self._read_between)
        kept = max((_overlap(self._buffer, marker) for marker in _MARKERS), default=0)
        at = len(self._buffer) - kept
        if self._buffer[:at].strip() or self._has_content:
            self._add_content(self._buffer[:at])
            self._buffer = self._buffer[at:]
        return False

    def _read_start(self) -> bool | None:
        """Reads a call at the beginning of the text, without a marker. None when there is none."""
        lead = self._buffer.lstrip()
        if not lead:
            return False
        array = re.match(r"\[\s*(?=\{)", lead)
        if lead[0] == "{" or array is not None:
            self._buffer = lead
            return self._go(self._read_head)
        if re.fullmatch(r"\[\s*", lead):
            return False
        return self._read_named(lead)

    def _read_named(self, lead: str) -> bool | None:
        """Reads `name{` or `name[ARGS]{`. None when it is something else."""
        for name in self._names:
            if name.startswith(lead):
                return False
            if lead.startswith(name):
                rest = lead[len(name) :].removeprefix("[ARGS]").lstrip()
                if rest[:1] == "{":
                    self._buffer = rest
                    self._start_call(name, is_enclosed=False)
                    return self._go(self._read_value)
                if not rest or "[ARGS]".startswith(rest):
                    return False
        return None

    def _read_between(self) -> bool:
        """Skips what separates calls."""
        while True:
            self._buffer = self._buffer.lstrip(" \n\r\t,;]")
            marker = next((marker for marker in _SKIPPED if self._buffer.startswith(marker)), None)
            if marker is not None:
                self._is_bare = False
                self._buffer = self._buffer[len(marker) :]
            elif any(marker.startswith(self._buffer) for marker in _SKIPPED):
                return False  # perhaps the beginning of one, as is the empty text
            elif self._buffer[0] == "[":
                self._buffer = self._buffer[1:]
            else:
                break
        if self._buffer[0] == "{":
            return self._go(self._read_head)
        named = None if self._is_bare else self._read_named(self._buffer)
        if named is not None:
            return named
        self._has_content = True
        return self._go(self._read_text)

    def _read_head(self) -> bool:
        start = self._buffer.find("{")
        head = _HEAD.match(self._buffer, start)
        if head is not None:
            name = _decoded(head[1])
            if not isinstance(name, str) or (self._is_bare and name not in self._names):
                return self._give_up()
            self._buffer = self._buffer[head.end() :]
            self._start_call(name, is_enclosed=True)
            return self._go(self._read_value)
        size = JsonEnd().find(self._buffer[start:])
        if size >= 0:
            return self._read_whole(start, start + size)
        return self._give_up() if len(self._buffer) > MAX_HEAD_CHARACTERS else False

    def _read_whole(self, start: int, end: int) -> bool:
        """Reads a complete object whose fields come in another order."""
        call = _decoded(self._buffer[start:end])
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or (self._is_bare and name not in self._names):
            return self._give_up()
        self._buffer = self._buffer[end:]
        self._start_call(name, is_enclosed=False)
        self._add_value(call.get("arguments", call.get("parameters")))
        return self._go(self._read_between)

    def _read_value(self) -> bool:
        self._end = JsonEnd()
        if self._buffer[0] == '"':
            return self._go(self._read_string)
        if self._buffer[0] in "{[":
            return self._go(self._read_arguments)
        self._add_value(None)  # null, or another value that no function accepts
        return self._go(self._read_tail)

    def _read_arguments(self) -> bool:
        end = self._end.find(self._buffer)
        self._add_arguments(self._buffer if end < 0 else self._buffer[:end])
        self._buffer = "" if end < 0 else self._buffer[end:]
        return False if end < 0 else self._go(self._read_tail)

    def _read_string(self) -> bool:
        """The arguments as OpenAI writes them: JSON inside a string."""
        end = JsonEnd().find(self._buffer)
        if end < 0:
            return False
        self._add_value(_decoded(self._buffer[:end]))
        self._buffer = self._buffer[end:]
        return self._go(self._read_tail)

    def _read_tail(self) -> bool:
        if not self._is_enclosed:
            return self._go(self._read_between)
        end = self._end.find(self._buffer) if self._end_is_outer else self._start_tail()
        self._buffer = "" if end < 0 else self._buffer[end:]
        if end < 0:
            return False
        self._is_enclosed = False
        return self._go(self._read_between)

    def _start_tail(self) -> int:
        self._end, self._end_is_outer = JsonEnd(depth=1), True
        return self._end.find(self._buffer)

    # What is found.

    def _go(self, step: Callable[[], bool]) -> bool:
        self._step = step
        return True

    def _give_up(self) -> bool:
        self._has_content = True
        self._add_content(self._buffer)
        self._buffer = ""
        return self._go(self._read_text)

    def _add_content(self, text: str) -> None:
        if text.strip() or self._has_content:
            self._has_content = True
            self._content += text

    def _start_call(self, name: str, *, is_enclosed: bool) -> None:
        self._is_enclosed, self._end_is_outer = is_enclosed, False
        self._deltas.append(ToolDelta(self.num_calls, new_call_id(), name))
        self.num_calls += 1

    def _add_arguments(self, text: str) -> None:
        if text:
            self._deltas.append(ToolDelta(self.num_calls - 1, arguments=text))

    def _add_value(self, value: Any) -> None:
        self._add_arguments(
            value
            if isinstance(value, str)
            else "{}"
            if value is None
            else msgspec.json.encode(value).decode()
        )


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _overlap(text: str, marker: str) -> int:
    """The length of the longest end of the text that is a beginning of the marker."""
    return next(
        (
            size
            for size in range(min(len(text), len(marker) - 1), 0, -1)
            if text.endswith(marker[:size])
        ),
        0,
    )
