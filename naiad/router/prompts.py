"""The prompt of a request as tokens, for the policy `prefix`.

In:  bodies of OpenAI's routes and of /generate. Out: the tokens that the engine will compute, by
     the checkpoint's own tokenizer and chat template; without a tokenizer, pieces of the text that
     are only compared with each other.
Rule: a prompt that cannot be read has no tokens, and its request is placed by load. The replica has
      the right error for it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from naiad.core.install_advice import install_command
from naiad.errors import NaiadError, invalid_arg
from naiad.router.policies.prefix import Prompt

if TYPE_CHECKING:
    from naiad.router.policy import RoutedRequest

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger body is placed by load."""
PIECE_BYTES = 4
_MAX_KEPT = 64
_NOTHING = Prompt()


class _Body(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    text_input: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    stream: bool | None = None
    cache_salt: str | None = None


_decoder = msgspec.json.Decoder(_Body)


def _read(request: RoutedRequest) -> _Body | None:
    body = request.body
    if len(body) > MAX_BODY_BYTES or not len(body):
        return None
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_stream(request: RoutedRequest, body: _Body) -> bool:
    return bool(body.stream) or request.path.endswith("/generate_stream")


def read_pieces(request: RoutedRequest) -> Prompt:
    """Without a tokenizer: four bytes of text stand for a token."""
    body = _read(request)
    if body is None:
        return _NOTHING
    text = bytes(body.tools) + bytes(body.messages or body.prompt or body.text_input)
    padded = text + b" " * (-len(text) % PIECE_BYTES)
    return Prompt(
        memoryview(padded).cast("I").tolist(), body.cache_salt or "", _is_stream(request, body)
    )


class TokenReader:
    """Reads prompts with the tokenizer and the chat template of a checkpoint."""

    def __init__(self, path: Path, owner_of: Callable[[RoutedRequest], str]) -> None:
        """`owner_of` returns the id of a request's key, where prompts of keys share nothing. Raises
        NaiadError."""
        try:
            import tokenizers

            from naiad.llm.text.chat_template import read_chat_template
        except ModuleNotFoundError as error:
            raise invalid_arg(
                f"the tokenizer of policy 'prefix' needs {error.name}, which is not installed: "
                + install_command("llm")
            ) from None
        folder = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise invalid_arg(f"tokenizer '{path}': there is no file '{file}'")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exceptions
            raise invalid_arg(f"tokenizer '{file}' cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = read_chat_template(folder)
        self._owner_of = owner_of
        self._kept: OrderedDict[bytes, list[int]] = OrderedDict()
        """The tokens of the last prompts: a request that is tried again is not tokenized again."""
        self._lock = threading.Lock()

    def read(self, request: RoutedRequest) -> Prompt:
        body = _read(request)
        if body is None:
            return _NOTHING
        owner = self._owner_of(request)
        salt = body.cache_salt or ""
        if owner:
            salt = f"{salt}\x1f{owner}"
        try:
            tokens = self._tokens(body)
        except (NaiadError, msgspec.DecodeError, TypeError, ValueError):
            tokens = []
        return Prompt(tokens, salt, _is_stream(request, body))

    def _tokens(self, body: _Body) -> list[int]:
        if body.messages:
            if self._template is None:
                return []
            text = self._template.render(
                json.loads(bytes(body.messages)),
                json.loads(bytes(body.tools)) if body.tools else None,
                body.add_generation_prompt,
                **(body.chat_template_kwargs or {}),
            )
            return self._encode(text, False)
        value = json.loads(bytes(body.prompt or body.text_input) or b'""')
        if isinstance(value, str):
            return self._encode(value, True)
        if isinstance(value, list) and value and all(isinstance(token, int) for token in value):
            return value
        return []

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        key = text.encode(errors="replace")
        with self._lock:
            tokens = self._kept.get(key)
        if tokens is None:
            # A batch, because the library releases the interpreter for batches only.
            encodings = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            tokens = encodings[0].ids
            with self._lock:
                self._kept[key] = tokens
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        return tokens
