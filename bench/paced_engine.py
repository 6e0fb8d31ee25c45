"""The backend `llm` with an engine that needs no processor and no framework: a step takes a fixed
time, as on a device, and makes one token for every open request.

It stands in for the backend `llm` in bench/tokenize_delay.py. Everything around the engine is
Naiad's own: prompts, text processes, lanes, the host and detokenizing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from naiad.backends.backend import Runtime
from naiad.backends.llm import service
from naiad.backends.llm.backend import LlmBackend
from naiad.backends.llm.chat import read_chat_templates
from naiad.backends.llm.checkpoint import find_checkpoint
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.options import LlmOptions
from naiad.ipc.work import LoadArguments
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from naiad.llm.engine_statistics import EngineLoad, EngineStatistics
from naiad.llm.generation import FinishReason, GenerationRequest, TokenOutput
from naiad.llm.parameters import too_long
from naiad.llm.text.detokenizer import Detokenizer, build_detokenizer
from naiad.llm.text.tokenizer import Tokenizer

STEP_S = 0.002
DEFAULT_CONTEXT = 4096


class PacedEngine:
    """`LanguageEngine`."""

    is_ahead = False

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self.statistics = EngineStatistics()
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._open: dict[str, tuple[GenerationRequest, Detokenizer, int]] = {}
        self._outputs: list[TokenOutput] = []
        self._due_s = 0.0

    def submit(self, request: GenerationRequest) -> None:
        prompt = request.prompt
        assert isinstance(prompt, list)
        if len(prompt) >= self._max_model_len:
            raise too_long(len(prompt), self._max_model_len)
        text = build_detokenizer(self._tokenizer, prompt, True)
        self._open[request.id] = (request, text, request.parameters.max_tokens or 128)

    def cancel(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._outputs.append(
                TokenOutput(request_id, 0, [], finish_reason=FinishReason.CANCELLED)
            )

    @property
    def has_work(self) -> bool:
        return bool(self._open or self._outputs)

    def step(self, on_launched: Callable[[], None] | None = None) -> list[TokenOutput]:
        now_s = time.monotonic()
        self._due_s = max(self._due_s, now_s) + STEP_S
        time.sleep(self._due_s - now_s)
        for request_id, (request, text, num_left) in list(self._open.items()):
            token = 100 + num_left % 1000
            output = TokenOutput(request_id, 0, [token], text.append(token))
            if num_left == 1:
                output.finish_reason = FinishReason.LENGTH
                del self._open[request_id]
            else:
                self._open[request_id] = (request, text, num_left - 1)
            self._outputs.append(output)
        outputs, self._outputs = self._outputs, []
        return outputs

    def load(self) -> EngineLoad:
        return EngineLoad(len(self._open), 0, 0.0, 0, 0, 0)


def open_paced(
    options: LlmOptions, bases: list[Path], num_threads: int, processes: object, log: object
) -> OpenModel:
    """Stands in for naiad.backends.llm.open.open_model."""
    path = find_checkpoint(options.checkpoint, bases)
    tokenizer = (
        build_tokenizer(GgufFile(path).metadata)
        if path.is_file()
        else read_tokenizer(open_folder(path))
    )
    assert tokenizer is not None
    chat = read_chat_templates(path, processes)  # type: ignore[arg-type]
    if hasattr(processes, "open_tokenizer"):  # absent where the bench measures an older version
        processes.open_tokenizer(path, uses_fast=options.settings.use_fast_tokenizer)
    length = options.settings.max_model_len or DEFAULT_CONTEXT
    engine = PacedEngine(tokenizer, length)
    return OpenModel(engine, tokenizer, chat, length, tokenizer.vocab_size, 64, 16, 1024, "native")


class PacedBackend(LlmBackend):
    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        with patch.object(service, "open_model", open_paced):
            super().load(arguments, runtime)
