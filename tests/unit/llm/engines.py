"""Engines for tests, and their output collected per completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from naiad.errors import NaiadError
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import FinishReason, GenerationRequest, TokenLogprobs, TokenOutput
from naiad.llm.parameters import SamplingParameters
from naiad.llm.start.load import load_engine


class Completion(msgspec.Struct):
    tokens: list[int] = []
    text: str = ""
    pieces: list[str] = []
    logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: NaiadError | None = None
    num_cached_tokens: int = 0


def small_engine(folder: Path, **values: Any) -> Engine:
    """Room for a few sequences only, so that budgets, preemption and prefix hits come up; in
    float32, as references are."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_num_batched_tokens": 24,
        "num_kv_blocks": 30,
        "block_size": 4,
        "max_num_seqs": 5,
    } | values
    return load_engine(folder, EngineSettings(device="cpu", **settings))


def request(
    id: str, prompt: str | list[int], priority: int = 0, **values: Any
) -> GenerationRequest:
    return GenerationRequest(
        id=id,
        prompt=prompt,
        priority=priority,
        parameters=SamplingParameters(**{"temperature": 0.0, **values}),
    )


class Gatherer:
    """Checks the stream's promises on the way: one end per completion, nothing after it."""

    def __init__(self) -> None:
        self.completions: dict[tuple[str, int], Completion] = {}

    def take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            completion = self.completions.setdefault(
                (output.request_id, output.index), Completion()
            )
            assert completion.finish_reason is None, "something came after the end"
            completion.tokens += output.token_ids
            completion.text += output.text
            completion.pieces.append(output.text)
            completion.logprobs += output.logprobs or []
            completion.finish_reason = output.finish_reason
            completion.stop_reason = output.stop_reason
            completion.error = output.error
            completion.num_cached_tokens = output.num_cached_tokens


def run(engine: Engine, requests: list[GenerationRequest]) -> dict[tuple[str, int], Completion]:
    gatherer = Gatherer()
    for one in requests:
        engine.submit(one)
    while engine.has_work:
        gatherer.take(engine.step())
    assert all(completion.finish_reason is not None for completion in gatherer.completions.values())
    check_empty(engine)
    return gatherer.completions


def check_empty(engine: Engine) -> None:
    assert engine.scheduler.pool.num_used == 0
    assert not engine.scheduler.running
    assert len(engine.scheduler.waiting) == 0
    assert engine.scheduler.num_host_bound == 0
