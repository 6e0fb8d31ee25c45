"""Tests that report paths are checked before a measurement starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naiad.perf.options import PerfOptions
from naiad.perf.session import run
from naiad.settings.option import OptionError
from naiad.tools.report_path import check_file, make_folder


def test_a_report_needs_an_existing_folder(tmp_path: Path) -> None:
    check_file("-f", str(tmp_path / "new.csv"))
    with pytest.raises(OptionError, match="does not exist"):
        check_file("-f", str(tmp_path / "none" / "new.csv"))
    with pytest.raises(OptionError, match="it is a folder"):
        check_file("-f", str(tmp_path))


def test_creates_the_export_folder(tmp_path: Path) -> None:
    make_folder("-e", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        make_folder("-e", str(tmp_path / "file" / "b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"html": "/nowhere/x.html"}, "--html /nowhere/x.html cannot be written"),
        ({"compare": ["other=nonsense"]}, "expected flags"),
        ({"compare": ["other=--concurrency-range 4:1"]}, "must not be smaller"),
        ({"compare": ["/nowhere/x.json"]}, "cannot be read"),
    ],
)
def test_rejects_invalid_options_before_the_first_request(
    options: dict[str, Any], message: str
) -> None:
    """There is no server at this address, so a request would raise another error."""
    with pytest.raises(OptionError, match=message):
        run(PerfOptions(model="m", url="127.0.0.1:1", **options))
