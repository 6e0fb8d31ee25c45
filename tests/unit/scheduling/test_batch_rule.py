from __future__ import annotations

import pytest

from naiad.scheduling.batch_rule import BatchRule
from tests.fakes import fake_job

MS = 1_000_000


def choose(rule: BatchRule, sizes: list[int], age_ns: int = 0) -> tuple[int, int]:
    return rule.choose([fake_job(batch_size=size) for size in sizes], age_ns)


@pytest.mark.parametrize(
    ("preferred", "delay_ms", "sizes", "age_ms", "expected"),
    [
        # No delay: everything that fits goes at once.
        ([8], 0, [1], 0, (1, 0)),
        ([8], 0, [1] * 5, 0, (5, 0)),
        ([8], 0, [1] * 20, 0, (8, 0)),
        ([8], 0, [3, 3, 3], 0, (2, 0)),
        # Preferred sizes win over whatever else would fit.
        ([4], 0, [1] * 6, 0, (4, 0)),
        ([2, 4], 0, [1] * 3, 0, (2, 0)),
        ([4], 0, [3, 2], 0, (1, 0)),
        # A delay waits for a preferred size, but not longer than that.
        ([8], 5, [1, 1], 0, (0, 5 * MS)),
        ([8], 5, [1, 1], 3, (0, 2 * MS)),
        ([8], 5, [1, 1], 5, (2, 0)),
        ([4], 5, [1] * 4, 0, (4, 0)),
        ([4, 8], 5, [1] * 6, 0, (4, 0)),
        ([4, 8], 5, [1] * 6, 5, (6, 0)),
        # Full: waiting longer could not add anything.
        ([4], 5, [7, 2], 0, (1, 0)),
    ],
)
def test_choose(
    preferred: list[int], delay_ms: int, sizes: list[int], age_ms: int, expected: tuple[int, int]
) -> None:
    rule = BatchRule(8, frozenset(preferred), delay_ms * MS)
    assert choose(rule, sizes, age_ms * MS) == expected


def test_a_request_larger_than_every_preferred_size_goes_alone() -> None:
    assert choose(BatchRule(8, frozenset({2})), [5, 1]) == (1, 0)


def test_shapes_are_never_mixed() -> None:
    rule = BatchRule(8, frozenset({8}), 0, frozenset({"INPUT0"}))
    requests = [
        fake_job(shape=[4]),
        fake_job(shape=[4]),
        fake_job(shape=[5]),
        fake_job(shape=[4]),
    ]
    assert rule.choose(requests, 0) == (2, 0)


def test_different_shapes_close_the_batch_even_before_the_delay_is_over() -> None:
    rule = BatchRule(8, frozenset({8}), 5 * MS, frozenset({"INPUT0"}))
    assert rule.choose([fake_job(shape=[4]), fake_job(shape=[5])], 0) == (1, 0)


def test_ragged_inputs_may_differ() -> None:
    assert BatchRule(8, frozenset({8})).choose([fake_job(shape=[4]), fake_job(shape=[5])], 0) == (
        2,
        0,
    )


def test_requests_with_different_optional_inputs_are_not_mixed() -> None:
    rule = BatchRule(8, frozenset({8}), has_optional_inputs=True)
    other = fake_job()
    other.request.inputs = []
    assert rule.choose([fake_job(), other], 0) == (1, 0)
