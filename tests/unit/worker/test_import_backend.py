from __future__ import annotations

import sys

import pytest

from naiad.worker.import_backend import import_backend


def test_a_framework_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "naiad.backends.openvino.backend", raising=False)
    with pytest.raises(
        ModuleNotFoundError, match=r"openvino is not installed: pip install naiad\[openvino\]"
    ):
        import_backend("openvino")
