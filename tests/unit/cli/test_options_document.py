from __future__ import annotations

from pathlib import Path

import pytest

from naiad.cli.options_document import PAGES, with_tables

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", PAGES)
def test_tables_of_options_are_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text()
    assert text == with_tables(page, text), "run `python -m naiad.cli.options_document`"
