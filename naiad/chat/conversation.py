"""A conversation in the terminal: lines of a person in, the model's responses out as they come.

Rule: a response that fails or is interrupted leaves the conversation as it was before the question,
      so that the person can ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from naiad.chat.client import ChatError, ChatMessage

HELP = "Type a message. /reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops a response."

Ask = Callable[[Sequence[ChatMessage]], Iterator[str]]
Write = Callable[[str], None]


class Conversation:
    def __init__(self, ask: Ask, write: Write, system: str = "") -> None:
        self._ask = ask
        self._write = write
        self._start = [ChatMessage("system", system)] if system else []
        self.messages = list(self._start)

    def run(self, lines: Iterator[str]) -> bool:
        """Talks until the lines end or the person leaves. Returns False if a response failed."""
        is_ok = True
        for line in lines:
            text = line.strip()
            if text in ("/exit", "/quit", "/bye"):
                break
            if text == "/reset":
                self.messages = list(self._start)
                self._write("The conversation starts over.\n")
            elif text in ("/help", "/?"):
                self._write(HELP + "\n")
            elif text:
                is_ok = self._respond(text) and is_ok
        return is_ok

    def _respond(self, text: str) -> bool:
        messages = [*self.messages, ChatMessage("user", text)]
        pieces: list[str] = []
        try:
            for piece in self._ask(messages):
                self._write(piece)
                pieces.append(piece)
        except KeyboardInterrupt:
            self._write("\n[stopped]\n")
            return True
        except ChatError as error:
            self._write(f"\n[{error}]\n")
            return False
        self._write("\n")
        self.messages = [*messages, ChatMessage("assistant", "".join(pieces))]
        return True
