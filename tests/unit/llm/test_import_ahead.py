from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.llm import import_ahead
from tests.server.gates import eventually

# As transformers does: the module that an import returns is not the one that began it.
REPLACING = """
import sys, types
with open({gate!r}) as opened:
    opened.read()
module = types.ModuleType(__name__)
module.__path__, module.__spec__, module.AttentionInterface = __path__, __spec__, 1
sys.modules[__name__] = module
"""


def test_who_joins_gets_a_package_that_replaces_itself_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the join, the second importer gets the module that the package has replaced:
    "module 'transformers' has no attribute 'AttentionInterface'"."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "replaces_itself").mkdir()
    (tmp_path / "replaces_itself/__init__.py").write_text(REPLACING.format(gate=str(gate)))
    (tmp_path / "imports_it.py").write_text("import replaces_itself\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[Any] = []

    def use() -> None:
        import_ahead.join()
        import replaces_itself  # type: ignore[import-not-found]

        found.append(replaces_itself)

    import_ahead.start("imports_it")
    eventually(lambda: "replaces_itself" in sys.modules, "the import begins")
    second = threading.Thread(target=use)
    second.start()
    gate.write_text("go on")
    second.join()
    assert found[0].AttentionInterface == 1


def test_transformers_is_used_only_after_the_import_of_the_grammar_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = pytest.importorskip("naiad.llm.start.load")

    class JoinedError(Exception):
        pass

    def join() -> None:
        raise JoinedError

    monkeypatch.setattr(import_ahead, "join", join)
    with pytest.raises(JoinedError):
        load._load_with_transformers(SimpleNamespace(), SimpleNamespace())


def test_an_import_that_fails_is_left_to_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_ahead.py").write_text("raise OSError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_ahead.start("broken_ahead")
    import_ahead.join()
    assert "broken_ahead" not in sys.modules
