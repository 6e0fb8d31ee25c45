"""Which headers become parameters of a request."""

from __future__ import annotations

import pytest

from naiad.core.request import InferRequest, ParameterValue
from naiad.errors import NaiadError
from naiad.frontends.header_forward import HeaderForward


def test_matching_headers_are_selected_in_the_case_they_were_sent_in() -> None:
    headers = {"My_One": "1", "X-My_Two": "2", "my_three": "a, b"}
    forward = HeaderForward("^my_")
    assert forward.is_on
    assert forward.select(headers.items()) == {"My_One": "1", "my_three": "a, b"}


def test_a_pattern_may_be_case_sensitive() -> None:
    exact = HeaderForward("(?-i)^my_")
    assert exact.select([("My_One", "1"), ("my_two", "2")]) == {"my_two": "2"}


def test_an_empty_pattern_forwards_nothing() -> None:
    forward = HeaderForward("")
    assert not forward.is_on
    assert forward.select([("a", "1")]) == {}


@pytest.mark.parametrize(
    "name", ["triton_x", "sequence_id", "priority", "timeout", "headers", "binary_data_output"]
)
def test_reserved_names_are_not_forwarded(name: str) -> None:
    with pytest.raises(
        NaiadError, match=f"^Header '{name}' is reserved for Triton usage and cannot be forwarded.$"
    ):
        HeaderForward(".").select([(name, "1")])


def test_forwarded_headers_are_added_to_a_copy_of_the_parameters() -> None:
    shared: dict[str, ParameterValue] = {"a": 1}
    request = InferRequest("m", [], parameters=shared)
    HeaderForward("x").apply(request, {"x": "2", "y": "3"})
    assert request.parameters == {"a": 1, "x": "2"}
    assert shared == {"a": 1}


def test_headers_that_hold_keys_are_never_forwarded() -> None:
    forward = HeaderForward(".*", ("authorization", "x-api-key"))
    headers = [("Authorization", "Bearer secret"), ("X-API-Key", "secret"), ("other", "1")]
    assert forward.select(headers) == {"other": "1"}
