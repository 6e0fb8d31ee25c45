"""Sizes as people write them."""

from __future__ import annotations

import pytest

from naiad.core.byte_size import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 2**32), ("1.5 MiB", 1572864), ("2GB", 2 * 10**9), (77, 77)]
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "much", "4 GIGA", "-1GiB", "inf", "nan", -1])
def test_refuses_what_is_not_a_size(text: int | str) -> None:
    with pytest.raises(ValueError, match=r"memory is .*, expected a size such as 4GiB"):
        parse_bytes(text, "memory")
