"""An open language model: its engine behind one interface, its tokenizer, its chat templates and
its sizes.

The engines are naiad.llm.engine.Engine (native) and naiad.llm.openvino.engine.OpenvinoEngine.
Rule: only the host's thread calls the engine; the tokenizer and the templates are used by others.
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
        """Raises NaiadError: INVALID_ARG if the request is wrong, UNAVAILABLE if too many requests
        are waiting."""
        ...

    def cancel(self, request_id: str) -> None: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def is_ahead(self) -> bool:
        """True if the device is working and the next `step` launches more before it waits."""
        ...

    def step(self, on_launched: Callable[[], None] | None = None) -> list[TokenOutput]:
        """Calls `on_launched` before the thread waits for the device, if it waits."""
        ...

    def load(self) -> EngineLoad: ...


class TextCodec(Protocol):
    """A tokenizer. Safe for use from any thread."""

    @property
    def is_byte_level(self) -> bool: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token: int) -> bytes:
        """Valid only if `is_byte_level`."""
        ...

    def fingerprint(self) -> str:
        """Two tokenizers with the same fingerprint are taken for the same."""
        ...


class OpenModel(msgspec.Struct, eq=False):
    engine: LanguageEngine
    tokenizer: TextCodec | None
    """None if the model accepts and returns only token ids."""
    chat: ChatTemplates
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    block_size: int
    num_kv_blocks: int
    engine_name: str
    """`native` or `openvino`."""
    weights: str = ""
    """The format of quantized weights and the kernels that multiply them, as text for people."""
    kv_cache: str = ""
    """The format of the KV cache, if it differs from that of the activations."""
    code: str = ""
    """Whose code computes the model, if it is not the engine's own."""

    def facts(self) -> dict[str, str]:
        """Returns what the model's config shows about the engine."""
        facts = {
            "loaded_engine": f"{self.engine_name} ({self.code})" if self.code else self.engine_name,
            "loaded_weights": self.weights,
            "loaded_kv_cache": self.kv_cache,
            "loaded_max_model_len": str(self.max_model_len),
        }
        return {name: value for name, value in facts.items() if value}

    def token_text(self, token: int) -> str:
        if self.tokenizer is None:
            return ""
        return self.tokenizer.decode([token], skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes that the token stands for. If the tokenizer is not byte-level, these
        are the bytes of the token's text."""
        if self.tokenizer is not None and self.tokenizer.is_byte_level:
            return self.tokenizer.token_bytes(token)
        return self.token_text(token).encode()
