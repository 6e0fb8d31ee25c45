"""The phases of a request in the engine's statistics."""

from __future__ import annotations

from naiad.llm.engine_statistics import EngineStatistics
from naiad.llm.generation import FinishReason

S = 1_000_000_000


class TimedSequence:
    def __init__(self, arrival_ns: int) -> None:
        self.arrival_ns = arrival_ns
        self.begin_ns = self.first_token_ns = self.last_token_ns = 0


def test_a_request_waits_is_prefilled_and_decodes() -> None:
    statistics, sequence = EngineStatistics(), TimedSequence(10 * S)
    statistics.record_step(7, [sequence], 12 * S)
    statistics.record_step(1, [sequence], 13 * S)  # it was preempted and got a place again
    statistics.record_token(sequence, 7, 15 * S)
    statistics.record_token(sequence, 7, 16 * S)
    statistics.record_token(sequence, 7, 19 * S)
    statistics.record_finish(sequence, FinishReason.STOP, 20 * S)
    totals = {
        name: getattr(statistics, name).total
        for name in ("queue_s", "prefill_s", "decode_s", "first_token_s", "inter_token_s")
    }
    assert totals == {
        "queue_s": 2.0, "prefill_s": 3.0, "decode_s": 4.0, "first_token_s": 5.0,
        "inter_token_s": 4.0,
    }  # fmt: skip
    assert statistics.request_s.total == 10.0
    assert (statistics.num_steps, statistics.step_tokens.total) == (2, 8)
    assert (statistics.prompt_tokens, statistics.generation_tokens) == (7, 3)


def test_a_request_that_ends_without_a_token_has_no_phases() -> None:
    statistics, sequence = EngineStatistics(), TimedSequence(S)
    statistics.record_finish(sequence, FinishReason.CANCELLED, 2 * S)
    assert statistics.request_s.total == 1.0
    assert sum(statistics.decode_s.counts) == sum(statistics.queue_s.counts) == 0
