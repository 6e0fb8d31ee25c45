"""The prompt of one request, as a reader finds it, and how it becomes tokens.

In:  text, tokens or a chat. Out: tokens.
Rule: sizes are checked before the work. Rendering and tokenizing are work of a text process, unless
      the prompt is a small text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.text_process import TextProcesses
from naiad.backends.llm.text_work import PromptLimit, TextWork, TokenizeWork, unpack
from naiad.errors import invalid_arg
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.parameters import too_long

BYTES_PER_TOKEN = 16
"""Default of max_prompt_bytes per token of the context. Text has 3 to 6 bytes per token."""
MAX_SMALL_CHARACTERS = 512
"""A text that is no longer is tokenized in the worker: that takes 0.1 ms, which is less than the
way to a text process and back."""
BYTES_OF_TOKEN = 4


class Chat(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    arguments: dict[str, Any] = {}
    add_generation_prompt: bool = True
    template: str | None = None
    """Replaces the checkpoint's template."""
    continue_final_message: bool = False


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Has exactly one of text, tokens and chat."""

    text: str | None = None
    tokens: list[int] | None = None
    chat: Chat | None = None
    add_special_tokens: bool = True
    """Holds for text. A rendered chat has its special tokens already."""
    num_kept: int = 0
    """Only the last tokens are kept; 0 keeps all."""

    @property
    def is_small(self) -> bool:
        """True if reading it takes next to no time."""
        if self.chat is not None:
            return False
        return self.text is None or len(self.text) <= MAX_SMALL_CHARACTERS


class PromptReader:
    """Turns prompts into tokens for one model. Safe for use from any thread."""

    def __init__(
        self, model: OpenModel, settings: EngineSettings, processes: TextProcesses
    ) -> None:
        self._model = model
        self._processes = processes
        self._trusts_templates = settings.trust_request_chat_template
        max_bytes = settings.max_prompt_bytes or model.max_model_len * BYTES_PER_TOKEN
        self._limit = PromptLimit(max_bytes, model.max_model_len)

    def check(self, prompt: Prompt) -> None:
        """Makes the checks that need no work. Raises NaiadError."""
        if prompt.tokens is not None:
            if len(prompt.tokens) >= self._model.max_model_len:
                raise too_long(len(prompt.tokens), self._model.max_model_len)
            return
        if self._model.tokenizer is None:
            raise invalid_arg("the model has no tokenizer, expected the prompt as token ids")
        if prompt.text is not None:
            self._limit.check(prompt.text)
        elif prompt.chat is not None and prompt.chat.template and not self._trusts_templates:
            raise invalid_arg(
                "chat_template is not accepted from requests: the model's parameter "
                "'trust_request_chat_template' is not set"
            )

    def read(self, prompt: Prompt) -> list[int]:
        """Returns the tokens of a prompt that `check` accepts. Raises NaiadError."""
        if prompt.tokens is not None:
            return prompt.tokens
        if prompt.is_small:
            assert prompt.text is not None
            assert self._model.tokenizer is not None
            tokens = self._model.tokenizer.encode(prompt.text, prompt.add_special_tokens)
            return tokens[-prompt.num_kept :] if prompt.num_kept else tokens
        packed = self._processes.run(self._work(prompt)).tokens
        num_tokens = len(packed) // BYTES_OF_TOKEN
        if prompt.num_kept < num_tokens and prompt.num_kept:
            packed, num_tokens = packed[-prompt.num_kept * BYTES_OF_TOKEN :], prompt.num_kept
        if num_tokens >= self._model.max_model_len:  # before there is a list of them
            raise too_long(num_tokens, self._model.max_model_len)
        return unpack(packed)

    def _work(self, prompt: Prompt) -> TextWork:
        chat = prompt.chat
        if chat is None:
            assert prompt.text is not None
            return TokenizeWork(prompt.text, prompt.add_special_tokens)
        return self._model.chat.work(
            chat.messages,
            chat.tools,
            chat.arguments,
            chat.add_generation_prompt,
            chat.template,
            self._limit,
            continue_final_message=chat.continue_final_message,
        )
