"""Tests of stop strings in text that arrives in pieces: they are found wherever they are cut, and
never returned in part."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.llm.text.stop_strings import StopStrings, StopTable

TEXTS = st.text("ab.", max_size=30)
STOPS = st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3, unique=True)


def feed(stops: StopStrings, text: str, cuts: list[int]) -> str:
    shown, at = "", 0
    for cut in [*sorted(cuts), len(text)]:
        shown += stops.append(text[at:cut])
        at = max(at, cut)
        if stops.matched is not None:
            return shown
    return shown + stops.finish()


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    return min(((text.find(stop), stop) for stop in stops if stop in text), default=None)


@settings(max_examples=500, deadline=None)
@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=6), st.booleans())
def test_returned_text_ends_at_a_stop(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    matcher = StopStrings(StopTable(stops), include_stop)
    shown = feed(matcher, text, [min(cut, len(text)) for cut in cuts])
    if first_stop(text, stops) is None:
        assert matcher.matched is None
        assert shown == text
        return
    assert matcher.matched in stops
    assert text.startswith(shown)
    before = shown.removesuffix(matcher.matched) if include_stop else shown
    assert first_stop(before, stops) is None or include_stop


@settings(max_examples=300, deadline=None)
@given(TEXTS, STOPS)
def test_the_first_complete_stop_ends_text_that_arrives_by_letters(
    text: str, stops: list[str]
) -> None:
    matcher = StopStrings(StopTable(stops), False)
    shown = feed(matcher, text, list(range(len(text))))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        complete = text[: min(ends)]
        assert complete == shown + text[len(shown) : min(ends)]
        assert any(complete == shown + stop for stop in stops)
    else:
        assert shown == text


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [(["Hel", "lo <|e", "nd|> x"], "Hello "), (["a<|", "b"], "a<|b"), (["<|end|>"], "")],
)
def test_releases_held_text_that_becomes_something_else(pieces: list[str], shown: str) -> None:
    matcher = StopStrings(StopTable(["<|end|>"]), False)
    got = "".join(matcher.append(piece) for piece in pieces)
    assert got + matcher.finish() == shown


def test_without_stops_nothing_is_held() -> None:
    assert StopStrings(StopTable([]), False).append("x") == "x"


def test_a_token_is_cheap_with_the_longest_stop_strings() -> None:
    """All stop strings begin like the text, so as much as possible is held back and compared."""
    stops = ["a" * (240 + index) + "b" for index in range(16)]
    matcher = StopStrings(StopTable(stops), False)
    matcher.append("a" * 255)
    best_s = math.inf
    for _ in range(50):
        start_s = time.process_time()
        matcher.append("a")
        best_s = min(best_s, time.process_time() - start_s)
    assert best_s < 0.001
