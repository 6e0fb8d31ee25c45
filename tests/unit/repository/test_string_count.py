"""Counting the elements of large BYTES tensors: runs of equal lengths are counted at once, with the
results of counting one by one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError
from naiad.repository import request_check
from naiad.repository.request_check import check_byte_strings, check_strings, has_long_strings


def pack(sizes: list[int]) -> bytes:
    return b"".join(struct.pack("<I", size) + bytes(size) for size in sizes)


def fault(data: bytes, expected: int) -> str:
    tensor = Tensor("IN", "BYTES", [expected], data)
    try:
        check_byte_strings(InferRequest("m", [tensor]), tensor, expected, "m")
    except NaiadError as error:
        return error.message
    return ""


@given(
    runs=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=6),
    surplus=st.integers(-3, 3),
    cut=st.integers(0, 6),
)
def test_runs_count_as_single_elements(runs: list[tuple[int, int]], surplus: int, cut: int) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    data = pack(sizes)
    data = data[: len(data) - cut]
    expected = max(0, len(sizes) + surplus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_check, "_RUN_INTERVAL", 3)
        patch.setattr(request_check, "_MIN_RUN_BYTES", 1 << 30)
        one_by_one = fault(data, expected)
        patch.setattr(request_check, "_MIN_RUN_BYTES", 0)
        assert fault(data, expected) == one_by_one


def test_a_million_empty_elements() -> None:
    data = bytes(4_000_000)
    assert fault(data, 1_000_000) == ""
    assert "unexpected number of string elements 1000000" in fault(data, 999_999)
    assert "expected 1000001 string elements" in fault(data, 1_000_001)


def test_what_was_checked_before_is_not_checked_again() -> None:
    request = InferRequest("m", [Tensor("IN", "BYTES", [2], pack([1, 2]))])
    check_strings(request, "m")
    assert request.string_faults == {}


def test_faults_are_kept_for_the_check_of_the_request() -> None:
    request = InferRequest("m", [Tensor("IN", "BYTES", [3], pack([1, 2]))])
    check_strings(request, "m")
    assert request.string_faults is not None
    assert "expected 3 string elements" in request.string_faults["IN"].message


def test_a_negative_dimension_is_left_to_the_check_of_the_shape() -> None:
    request = InferRequest("m", [Tensor("IN", "BYTES", [-1], pack([1, 2]))])
    check_strings(request, "m")
    assert request.string_faults is None


def test_only_strings_are_long_strings() -> None:
    data = bytes(100)
    assert has_long_strings(InferRequest("m", [Tensor("IN", "BYTES", [25], data)]), 99)
    assert not has_long_strings(InferRequest("m", [Tensor("IN", "BYTES", [25], data)]), 100)
    assert not has_long_strings(InferRequest("m", [Tensor("IN", "UINT8", [100], data)]), 99)
