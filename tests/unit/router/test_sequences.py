from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.router.replica import Replica
from naiad.router.sequences import (
    BROKEN_MESSAGE,
    GONE_MESSAGE,
    IDLE_S,
    Sequences,
    SequenceStep,
)
from tests.unit.router.fleet_of import Seconds, fleet_of


def alive(replica: Replica) -> bool:
    return True


def test_a_sequence_stays_when_replicas_come_and_go() -> None:
    small, large = fleet_of("a", "b"), fleet_of("a", "b", "c", "d", "e")
    sequences = Sequences(Seconds())
    for number in range(50):
        step = SequenceStep(str(number), is_start=True)
        first = sequences.place("m", step, small.candidates("m"), alive)
        later = sequences.place("m", SequenceStep(str(number)), large.candidates("m"), alive)
        assert first is later


def test_two_routers_place_a_sequence_alike() -> None:
    fleet = fleet_of("a", "b", "c")
    one, two = Sequences(Seconds()), Sequences(Seconds())
    for number in range(50):
        step = SequenceStep(str(number))
        candidates = fleet.candidates("m")
        assert one.place("m", step, candidates, alive) is two.place("m", step, candidates, alive)


def test_the_end_of_a_sequence_is_forgotten_after_its_last_request() -> None:
    fleet = fleet_of("a", "b")
    sequences = Sequences(Seconds())
    sequences.place("m", SequenceStep("1", is_start=True), fleet.candidates("m"), alive)
    assert len(sequences) == 1
    sequences.place("m", SequenceStep("1", is_end=True), fleet.candidates("m"), alive)
    assert len(sequences) == 0


def test_a_sequence_whose_replica_is_gone_must_be_started_again() -> None:
    """The replica may come back with the sequence, and would lack what was refused meanwhile."""
    fleet = fleet_of("a", "b")
    sequences = Sequences(Seconds())
    first = sequences.place("m", SequenceStep("1", is_start=True), fleet.candidates("m"), alive)
    others = [replica for replica in fleet if replica is not first]
    for is_alive in (lambda replica: replica is not first, alive):
        with pytest.raises(NaiadError, match=f"^{GONE_MESSAGE}$"):
            sequences.place("m", SequenceStep("1"), others, is_alive)
    start = SequenceStep("1", is_start=True)
    assert sequences.place("m", start, others, alive) is others[0]
    assert sequences.place("m", SequenceStep("1"), fleet.candidates("m"), alive) is others[0]


def test_a_sequence_that_lost_a_request_must_be_started_again() -> None:
    fleet = fleet_of("a", "b")
    sequences = Sequences(Seconds())
    step, other = SequenceStep("1", owner="alice"), SequenceStep("1", owner="bob")
    first = sequences.place("m", step, fleet.candidates("m"), alive)
    sequences.place("m", other, fleet.candidates("m"), alive)
    assert sequences.lose("m", step) is first
    assert sequences.lose("m", step) is None
    for _ in range(2):
        with pytest.raises(NaiadError, match=f"^{BROKEN_MESSAGE}$"):
            sequences.place("m", step, fleet.candidates("m"), alive)
    assert sequences.place("m", other, fleet.candidates("m"), alive) is first
    start = SequenceStep("1", is_start=True, owner="alice")
    assert sequences.place("m", start, fleet.candidates("m"), alive) is first
    assert sequences.place("m", step, fleet.candidates("m"), alive) is first


def test_idle_sequences_are_forgotten() -> None:
    clock, fleet = Seconds(), fleet_of("a", "b")
    sequences = Sequences(clock)
    sequences.place("m", SequenceStep("1"), fleet.candidates("m"), alive)
    clock.now_s += IDLE_S / 2
    sequences.place("m", SequenceStep("2"), fleet.candidates("m"), alive)
    clock.now_s += IDLE_S / 2 + 1
    sequences.place("m", SequenceStep("3"), fleet.candidates("m"), alive)
    assert len(sequences) == 2


def test_nobody_can_serve_a_sequence_without_replicas() -> None:
    assert Sequences(Seconds()).place("m", SequenceStep("1"), [], alive) is None
