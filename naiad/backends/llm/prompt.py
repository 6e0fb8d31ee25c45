"""The prompt of one request, as a reader finds it, and how it becomes tokens.

In:  text, tokens or a chat. Out: tokens.
Rule: sizes are checked before the work. Rendering and tokenizing may take long, so the service does
      them on a thread of their own unless the prompt is small.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.backends.llm.model import OpenModel
from naiad.errors import NaiadError, invalid_arg
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.parameters import too_long

BYTES_PER_TOKEN = 16
"""Default of max_prompt_bytes per token of the context. Text has 3 to 6 bytes per token."""


class Chat(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    arguments: dict[str, Any] = {}
    add_generation_prompt: bool = True
    template: str | None = None
    """Replaces the checkpoint's template."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Has exactly one of text, tokens and chat."""

    text: str | None = None
    tokens: list[int] | None = None
    chat: Chat | None = None
    add_special_tokens: bool = True
    """Holds for text. A rendered chat has its special tokens already."""
    num_kept: int = 0
    """Only the last tokens are kept; 0 keeps all."""


class PromptReader:
    """Turns prompts into tokens for one model. Safe for use from any thread."""

    def __init__(self, model: OpenModel, settings: EngineSettings) -> None:
        self._model = model
        self._trusts_templates = settings.trust_request_chat_template
        self.max_bytes = settings.max_prompt_bytes or model.max_model_len * BYTES_PER_TOKEN

    def check(self, prompt: Prompt) -> None:
        """Makes the checks that need no work. Raises NaiadError."""
        if prompt.tokens is not None:
            if len(prompt.tokens) >= self._model.max_model_len:
                raise too_long(len(prompt.tokens), self._model.max_model_len)
            return
        if self._model.tokenizer is None:
            raise invalid_arg("the model has no tokenizer, expected the prompt as token ids")
        if prompt.text is not None:
            self._check_bytes(prompt.text)
        elif prompt.chat is not None and prompt.chat.template and not self._trusts_templates:
            raise invalid_arg(
                "chat_template is not accepted from requests: the model's parameter "
                "'trust_request_chat_template' is not set"
            )

    def read(self, prompt: Prompt) -> list[int]:
        """Returns the tokens of a prompt that `check` accepts. Raises NaiadError."""
        if prompt.tokens is not None:
            return prompt.tokens
        text, add_special_tokens = prompt.text, prompt.add_special_tokens
        if prompt.chat is not None:
            text, add_special_tokens = self._render(prompt.chat), False
        assert text is not None
        assert self._model.tokenizer is not None
        tokens = self._model.tokenizer.encode(text, add_special_tokens)
        return tokens[-prompt.num_kept :] if prompt.num_kept else tokens

    def _render(self, chat: Chat) -> str:
        text = self._model.chat.render(
            chat.messages,
            chat.tools,
            chat.arguments,
            chat.add_generation_prompt,
            chat.template,
            self.max_bytes,
        )
        self._check_bytes(text)
        return text

    def _check_bytes(self, text: str) -> None:
        # Characters are counted first, because that takes no time.
        num_bytes = len(text) if len(text) > self.max_bytes else len(text.encode(errors="replace"))
        if num_bytes > self.max_bytes:
            raise self._too_many_bytes(num_bytes)

    def _too_many_bytes(self, num_bytes: int) -> NaiadError:
        return invalid_arg(
            f"the prompt has {num_bytes} bytes, expected at most {self.max_bytes}: the model's "
            f"context is {self._model.max_model_len} tokens for prompt and output together"
        )
