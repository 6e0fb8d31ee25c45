"""What the log shows of a model that cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.backends.python.model_module import import_file
from naiad.worker.worker import last_lines


def load(folder: Path, code: str | None) -> str:
    """Imports a model that fails, or one that is not there."""
    if code is not None:
        (folder / "model.py").write_text(code)
    with pytest.raises((SyntaxError, ValueError, FileNotFoundError)) as raised:
        import_file("1", str(folder), "model.py")
    # The frames of this file are not those of a model.
    error = raised.value
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    return last_lines(error)


def test_a_syntax_error_is_its_line(tmp_path: Path) -> None:
    text = load(tmp_path, "x = 1\ndef execute(self, requests)\n")
    assert "naiad" not in text
    assert text.splitlines()[0].endswith('model.py", line 2')
    assert text.splitlines()[-1] == "SyntaxError: expected ':'"


def test_the_traceback_begins_in_the_model(tmp_path: Path) -> None:
    text = load(tmp_path, "def load():\n    raise ValueError('no')\n\nload()\n")
    assert text.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/model.py", line 4, in <module>',
    ]
    assert text.splitlines()[-1] == "ValueError: no"
    assert "naiad" not in text


def test_a_fault_outside_of_the_model_keeps_all_frames(tmp_path: Path) -> None:
    text = load(tmp_path, None)
    assert "model_module.py" in text
    assert text.splitlines()[-1].startswith("FileNotFoundError: ")
