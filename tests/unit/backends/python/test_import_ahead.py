from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from naiad.backends.python.import_ahead import imports_are_costly, leading_imports, run_imports
from naiad.ipc.work import LoadArguments


def write(tmp_path: Path, source: str, others: dict[str, str] | None = None) -> LoadArguments:
    """`others` are files next to model.py."""
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    for name, text in (others or {}).items():
        path = version / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return LoadArguments("m", 1, str(tmp_path / "m"), "m_0", "CPU", 0, b'{"name": "m"}')


def found(arguments: LoadArguments) -> list[str]:
    return [ast.unparse(statement) for statement in leading_imports(arguments)]


def test_finds_imports_in_order(tmp_path: Path) -> None:
    source = (
        '"""A model."""\nfrom __future__ import annotations\nimport json, torch.nn as nn\n'
        "SIZE = 3\nNAMES: list[str] = ['a']\n\ndef f():\n    import late\n\n"
        "from transformers import pipeline\n"
    )
    expected = ["import json", "import torch.nn as nn", "from transformers import pipeline"]
    assert found(write(tmp_path, source)) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "os.environ['OMP_NUM_THREADS'] = '1'",
        "sys.path.append('/opt')",
        "try:\n    import fast\nexcept ImportError:\n    pass",
        "if True:\n    import fast",
        "log = make_log()",
        "x.y = 1",
    ],
)
def test_ends_at_a_statement_that_may_matter_to_the_next_import(
    statement: str, tmp_path: Path
) -> None:
    source = f"import os, sys\n{statement}\nimport torch\n"
    assert found(write(tmp_path, source)) == ["import os", "import sys"]


def test_reads_modules_next_to_the_model(tmp_path: Path) -> None:
    source = (
        "import alpha\nfrom own import Net\nfrom . import near\nfrom .near import x\nimport omega\n"
    )
    arguments = write(
        tmp_path,
        source,
        {
            "own.py": "import torch\nfrom own_too import y\n",
            "own_too.py": "import own\nimport scipy\n",
            "near.py": "from pandas import DataFrame\n",
        },
    )
    assert found(arguments) == [
        "import alpha",
        "import torch",
        "import scipy",
        "from pandas import DataFrame",
        "import omega",
    ]


def test_ends_at_a_module_next_to_the_model_that_does_something(tmp_path: Path) -> None:
    arguments = write(
        tmp_path,
        "import own.part\nimport torch\n",
        {
            "own/__init__.py": "import early\n",
            "own/part.py": "import os\nos.environ['A'] = 'B'\nimport late\n",
        },
    )
    assert found(arguments) == ["import early", "import os"]


@pytest.mark.parametrize("source", ["def (", "\0"])
def test_a_file_that_does_not_parse_has_no_imports(source: str, tmp_path: Path) -> None:
    assert found(write(tmp_path, source)) == []


def test_a_missing_file_has_no_imports(tmp_path: Path) -> None:
    arguments = write(tmp_path, "import torch\n")
    os.remove(tmp_path / "m" / "1" / "model.py")
    assert found(arguments) == []
    assert not imports_are_costly(arguments)


@pytest.mark.parametrize(
    ("source", "is_costly"),
    [
        (
            "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n",
            False,
        ),
        ("import own\n", False),
        ("from torch import nn\n", True),
    ],
)
def test_imports_are_costly(source: str, is_costly: bool, tmp_path: Path) -> None:
    assert imports_are_costly(write(tmp_path, source, {"own.py": "import os\n"})) == is_costly


def test_runs_imports_without_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "imported_ahead.py").write_text("part = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "imported_ahead", raising=False)
    arguments = write(
        tmp_path, "from imported_ahead import part\nraise RuntimeError('the model ran')\n"
    )
    run_imports(leading_imports(arguments))
    assert sys.modules.pop("imported_ahead").part == 1


def test_an_import_that_fails_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        run_imports(leading_imports(write(tmp_path, "import not_there\n")))
