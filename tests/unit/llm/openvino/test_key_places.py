"""Which completions the openvino engine computes when several API keys are active."""

from __future__ import annotations

from typing import Any

from naiad.llm.generation import GenerationRequest
from naiad.llm.openvino.key_places import ACTIVE_NS, KeyPlaces


class Completion:
    def __init__(self, key_id: str, number: int, weight: int = 1, can_pause: bool = True) -> None:
        self.request = GenerationRequest(
            id=f"{key_id}{number}", prompt="", key_id=key_id, key_weight=weight
        )
        self.can_pause = can_pause

    def __repr__(self) -> str:
        return self.request.id


def completions(key_id: str, count: int, **options: Any) -> list[Completion]:
    return [Completion(key_id, number, **options) for number in range(count)]


def add(places: KeyPlaces[Completion], *added: Completion) -> None:
    for completion in added:
        places.add(completion)


def test_a_key_alone_has_all_places() -> None:
    places: KeyPlaces[Completion] = KeyPlaces(8, 4)
    flood = completions("a", 10)
    add(places, *flood)
    assert places.pause(0) == []
    assert places.begin(0) == flood[:8]
    assert places.num_running == 8
    places.remove(flood[3], 0)
    assert places.begin(0) == [flood[8]]


def test_a_new_key_runs_at_once_and_the_other_one_is_paused() -> None:
    places: KeyPlaces[Completion] = KeyPlaces(8, 4)
    flood, (quiet,) = completions("a", 10), completions("b", 1)
    add(places, *flood)
    places.begin(0)
    add(places, quiet)
    assert places.pause(0) == flood[7:1:-1]
    assert places.begin(0) == [quiet]
    assert places.num_running == 3
    places.remove(flood[0], 0)
    assert places.begin(0) == [flood[2]], "paused ones go on in their order"
    places.remove(quiet, 100)
    assert places.begin(100 + ACTIVE_NS - 1) == [], "the key may send its next request"
    assert places.begin(100 + ACTIVE_NS) == flood[3:9]


def test_places_are_divided_by_weight() -> None:
    places: KeyPlaces[Completion] = KeyPlaces(64, 8)
    add(places, *completions("a", 20), *completions("b", 20, weight=3))
    begun = [completion.request.key_id for completion in places.begin(0)]
    assert (begun.count("a"), begun.count("b")) == (2, 6)


def test_every_key_has_a_place_as_long_as_there_are_any() -> None:
    places: KeyPlaces[Completion] = KeyPlaces(6, 4)
    for number in range(9):
        add(places, *completions(f"key{number}-", 3))
    assert len({completion.request.key_id for completion in places.begin(0)}) == 6


def test_what_cannot_pause_goes_on() -> None:
    places: KeyPlaces[Completion] = KeyPlaces(8, 4)
    fixed = [Completion("a", number, can_pause=False) for number in range(4)]
    free = completions("a", 4)
    add(places, *free, *fixed)
    places.begin(0)
    add(places, *completions("b", 1))
    assert places.pause(0) == free[::-1]
    assert places.num_running == 4


def test_completions_are_removed_wherever_they_are() -> None:
    places: KeyPlaces[Completion] = KeyPlaces(1, 1)
    first, second = completions("a", 2)
    add(places, first, second)
    places.begin(0)
    places.remove(second, 0)
    places.remove(first, 0)
    places.remove(first, 0)
    assert places.begin(0) == []
    assert places.num_running == 0
