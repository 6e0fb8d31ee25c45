"""Importing model.py: other modules, names, a backend that is a model.py, and missing files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.backends.python.model_module import MODULES_DIR, import_model_class
from naiad.errors import NaiadError
from naiad.ipc.work import LoadArguments
from tests.unit.backends.models import write_model

EMPTY = "class TritonPythonModel:\n    pass\n"


def test_imports_other_modules_as_triton_does(tmp_path: Path) -> None:
    source = """
    import os
    import beside_model
    import above_model
    from . import beside_model as relative
    from triton_python_backend_utils import Tensor
    import c_python_backend_utils

    class TritonPythonModel:
        places = (beside_model.HERE, above_model.HERE, relative.HERE)
        names = (os.path.basename(__file__), __name__, __package__)
        same = c_python_backend_utils.Tensor is Tensor is pb_utils.Tensor
    """
    arguments = write_model(tmp_path, source)
    (tmp_path / "m" / "1" / "beside_model.py").write_text("HERE = 'version'")
    (tmp_path / "m" / "above_model.py").write_text("HERE = 'model'")
    from naiad.backends.python import pb_utils

    pb_utils.register()
    model_class = import_model_class(arguments)
    assert model_class.places == ("version", "model", "version")
    assert model_class.names == ("model.py", "1.model", "1")
    assert model_class.same
    assert sys.path.index(str(tmp_path / "m" / "1")) < sys.path.index(str(tmp_path / "m"))
    assert sys.modules["1.model"].TritonPythonModel is model_class


def test_processes_of_the_model_can_import_the_api() -> None:
    imports = (
        "from triton_python_backend_utils import Tensor; from c_python_backend_utils import Tensor"
    )
    code = f"import sys; sys.path.append({MODULES_DIR!r}); {imports}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[4])


def test_imports_another_filename(tmp_path: Path) -> None:
    arguments = write_model(tmp_path, EMPTY)
    (tmp_path / "m" / "1" / "special.py").write_text(
        "class TritonPythonModel:\n    name = 'special'\n"
    )
    arguments.model_filename = "special.py"
    assert import_model_class(arguments).name == "special"
    arguments.model_filename = "special.txt"
    with pytest.raises(
        NaiadError, match=r"^Model name must end with '.py'\. Model name is \"special.txt\"\.$"
    ):
        import_model_class(arguments)


def test_imports_the_model_of_the_backend(tmp_path: Path) -> None:
    backend_dir = tmp_path / "backends" / "own"
    backend_dir.mkdir(parents=True)
    (backend_dir / "model.py").write_text(
        "import own_helper\nclass TritonPythonModel:\n    name = own_helper.NAME\n"
    )
    (backend_dir / "own_helper.py").write_text("NAME = 'own'")
    (tmp_path / "m" / "1").mkdir(parents=True)
    arguments = LoadArguments(
        "m",
        1,
        str(tmp_path / "m"),
        "m_0",
        "CPU",
        0,
        json.dumps({}).encode(),
        backend_dir=str(backend_dir),
    )
    assert import_model_class(arguments).name == "own"
    (tmp_path / "m" / "1" / "model.py").write_text("class TritonPythonModel:\n    name = 'mine'\n")
    assert import_model_class(arguments).name == "mine"


def test_reports_a_missing_file_or_class(tmp_path: Path) -> None:
    arguments = write_model(tmp_path, "x = 1")
    with pytest.raises(
        NaiadError,
        match=r"^AttributeError: module '1\.model' has no attribute 'TritonPythonModel'$",
    ):
        import_model_class(arguments)
    (tmp_path / "m" / "1" / "model.py").unlink()
    with pytest.raises(NaiadError) as caught:
        import_model_class(arguments)
    assert caught.value.message == "Python model file not found in 'm/1/model.py'"


def test_forgets_a_module_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        import_model_class(write_model(tmp_path, "1 / 0"))
    assert "1.model" not in sys.modules
