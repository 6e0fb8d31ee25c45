"""TRITONSERVER_DELAY_SCHEDULER and TRITONSERVER_BACKLOG_DELAY_SCHEDULER: which requests each
scheduler counts before it executes the first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from naiad import log
from naiad.core.statistics import ModelStatistics
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.scheduling.build import build_scheduler
from naiad.scheduling.start_delay import (
    BACKLOG_VARIABLE,
    DELAY_VARIABLE,
    NO_DELAY,
    StartDelay,
    read_start_delay,
)
from tests.fakes import FakeClock, FakeInstance, fake_job

DYNAMIC = "max_batch_size: 8 dynamic_batching { }"
DIRECT = "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 1000000 }"
OLDEST = """
max_batch_size: 2
sequence_batching {
  oldest { max_candidate_sequences: 2 }
  max_sequence_idle_microseconds: 1000000
}
"""


class Bench:
    """A scheduler that is built from a config, its instances and its clock."""

    def __init__(self, config: str, delay: StartDelay = NO_DELAY, num_instances: int = 1) -> None:
        self.clock = FakeClock()
        self.instances = [FakeInstance() for _ in range(num_instances)]
        self.statistics = ModelStatistics("m", 1)
        self.scheduler = build_scheduler(
            text_format.Parse(f'name: "m" {config}', ModelConfig()),
            self.instances,
            self.clock,
            self.statistics,
            Path(),
            delay,
        )

    def send(self, id: str, sequence: int = 0, **fields: Any) -> None:
        if sequence:
            fields |= {"sequence_id": sequence, "sequence_start": fields.pop("start", True)}
        self.scheduler.enqueue(fake_job(id, **fields))
        self.clock.turn()

    @property
    def ids(self) -> list[list[list[str]]]:
        return [instance.ids for instance in self.instances]


@pytest.mark.parametrize(
    ("environment", "delay"),
    [
        ({}, StartDelay()),
        ({DELAY_VARIABLE: "4"}, StartDelay(4)),
        ({DELAY_VARIABLE: "12", BACKLOG_VARIABLE: " 0 "}, StartDelay(12)),
        ({DELAY_VARIABLE: "12", BACKLOG_VARIABLE: "2"}, StartDelay(12, 2)),
        ({DELAY_VARIABLE: ""}, StartDelay()),
    ],
)
def test_reads_the_environment(environment: dict[str, str], delay: StartDelay) -> None:
    assert read_start_delay(environment) == delay


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "²"])
def test_ignores_what_is_not_a_number(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert read_start_delay({DELAY_VARIABLE: text}) == NO_DELAY
    assert log.flush()
    assert f"{DELAY_VARIABLE} is '{text}'" in capfd.readouterr().err


def test_the_dynamic_batcher_waits_once_for_that_many_requests() -> None:
    bench = Bench(DYNAMIC, StartDelay(3))
    bench.send("a")
    bench.send("b")
    bench.clock.advance_s(60)
    assert bench.ids == [[]]
    bench.send("c")
    assert bench.ids == [[["a", "b", "c"]]]
    bench.instances[0].finish()
    bench.send("d")
    assert bench.ids == [[["a", "b", "c"], ["d"]]]


def test_more_requests_than_fit_one_batch() -> None:
    bench = Bench(DYNAMIC, StartDelay(9))
    for number in range(9):
        bench.send(str(number))
    assert bench.ids == [[[str(number) for number in range(8)]]]
    bench.instances[0].finish()
    bench.clock.turn()
    assert bench.ids[0][1] == ["8"]


def test_a_model_without_a_batcher_is_not_delayed() -> None:
    bench = Bench("max_batch_size: 8", StartDelay(3))
    bench.send("a")
    assert bench.ids == [[["a"]]]


def test_batches_and_direct_calls_do_not_bypass_the_delay() -> None:
    delayed, plain = Bench(DYNAMIC, StartDelay(3)), Bench(DYNAMIC)
    assert not delayed.scheduler.accepts_batches  # type: ignore[attr-defined]
    assert not delayed.instances[0].loan.is_allowed
    assert plain.scheduler.accepts_batches  # type: ignore[attr-defined]
    assert plain.instances[0].loan.is_allowed


def test_direct_sequences_count_the_requests_of_all_instances() -> None:
    bench = Bench(DIRECT, StartDelay(4), num_instances=2)
    bench.send("a1", 1)
    bench.send("b1", 2)
    bench.send("a2", 1, start=False)
    assert bench.ids == [[], []]
    bench.send("b2", 2, start=False)
    assert bench.ids == [[["a1"]], [["b1"]]]


def test_direct_sequences_also_wait_for_the_backlog() -> None:
    bench = Bench(DIRECT, StartDelay(2, 2))
    bench.send("a1", 1)
    bench.send("b1", 2)
    bench.send("c1", 3)
    assert bench.ids == [[]]
    bench.send("c2", 3, start=False)
    assert bench.ids == [[["a1", "b1"]]]


def test_the_backlog_alone_does_not_delay() -> None:
    bench = Bench(DIRECT, StartDelay(0, 5))
    bench.send("a1", 1)
    assert bench.ids == [[["a1"]]]


def test_oldest_sequences_count_the_sequences_of_each_instance() -> None:
    bench = Bench(OLDEST, StartDelay(2), num_instances=2)
    bench.send("a1", 1)
    bench.send("a2", 1, start=False)
    bench.send("b1", 2)
    assert bench.ids == [[], []]
    bench.send("c1", 3)
    assert bench.ids == [[["a1", "c1"]], []]
    bench.send("d1", 4)
    assert bench.ids == [[["a1", "c1"]], [["b1", "d1"]]]


@pytest.mark.parametrize(("config", "sequence"), [(DYNAMIC, 0), (DIRECT, 1), (OLDEST, 1)])
async def test_a_scheduler_that_stops_executes_what_it_holds(config: str, sequence: int) -> None:
    bench = Bench(config, StartDelay(5))
    bench.send("a", sequence, sequence_end=bool(sequence))
    stopping = asyncio.ensure_future(bench.scheduler.stop())
    await asyncio.sleep(0)
    bench.clock.turn()
    assert bench.ids == [[["a"]]]
    bench.instances[0].finish()
    await asyncio.wait_for(stopping, 10)
