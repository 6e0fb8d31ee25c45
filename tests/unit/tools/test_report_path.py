"""Where reports go is checked before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naiad.perf.options import PerfOptions
from naiad.perf.session import run
from naiad.settings.option import OptionError
from naiad.tools.report_path import check_file, make_folder


def test_a_report_needs_a_folder_that_is_there(tmp_path: Path) -> None:
    check_file("-f", str(tmp_path / "new.csv"))
    with pytest.raises(OptionError, match="there is no folder"):
        check_file("-f", str(tmp_path / "none" / "new.csv"))
    with pytest.raises(OptionError, match="is a folder"):
        check_file("-f", str(tmp_path))


def test_an_export_path_is_made(tmp_path: Path) -> None:
    make_folder("-e", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be written"):
        make_folder("-e", str(tmp_path / "file" / "b"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"html": "/nowhere/x.html"}, "--html /nowhere/x.html cannot be written"),
        ({"compare": ["other=nonsense"]}, "expected flags"),
        ({"compare": ["other=--concurrency-range 4:1"]}, "must not be smaller"),
        ({"compare": ["/nowhere/x.json"]}, "cannot be read"),
    ],
)
def test_a_mistake_is_told_before_the_first_request(given: dict[str, Any], said: str) -> None:
    """There is no server at this address: nobody gets so far as to ask it."""
    with pytest.raises(OptionError, match=said):
        run(PerfOptions(model="m", url="127.0.0.1:1", **given))
