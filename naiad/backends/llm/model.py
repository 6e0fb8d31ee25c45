"""A language model that was opened: an engine behind one interface, its tokenizer, its chat
template, its size.

Engines are naiad.llm.engine.Engine (native) and naiad.llm.openvino.engine.OpenvinoEngine. All calls
but `encode` and templates are made by one thread, the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from naiad.backends.llm.chat import ChatTemplates
from naiad.llm.engine_statistics import EngineLoad, EngineStatistics
from naiad.llm.generation import GenerationRequest, TokenOutput


class LanguageEngine(Protocol):
    statistics: EngineStatistics

    def submit(self, request: GenerationRequest) -> None:
        """Raises NaiadError: INVALID_ARG for what is wrong with the request, UNAVAILABLE when too
        many wait already."""
        ...

    def cancel(self, request_id: str) -> None: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def is_ahead(self) -> bool:
        """The device is at work, and the next `step` will give it more before it waits for that."""
        ...

    def step(self, on_launched: Callable[[], None] | None = None) -> list[TokenOutput]:
        """`on_launched` is called before the thread waits for the device, if it does."""
        ...

    def load(self) -> EngineLoad: ...


class TextCodec(Protocol):
    """May be used from any thread."""

    @property
    def is_byte_level(self) -> bool: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token: int) -> bytes:
        """Only where is_byte_level."""
        ...


class OpenModel(msgspec.Struct, eq=False):
    engine: LanguageEngine
    tokenizer: TextCodec | None
    """None: the model takes and gives token ids only."""
    chat: ChatTemplates
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    block_size: int
    num_kv_blocks: int
    engine_name: str
    """native or openvino."""

    def token_text(self, token: int) -> str:
        return (
            ""
            if self.tokenizer is None
            else self.tokenizer.decode([token], skip_special_tokens=False)
        )

    def token_bytes(self, token: int) -> bytes:
        """What the token stands for; of a tokenizer that is not byte-level, the bytes of its
        text."""
        if self.tokenizer is not None and self.tokenizer.is_byte_level:
            return self.tokenizer.token_bytes(token)
        return self.token_text(token).encode()
