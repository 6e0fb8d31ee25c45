"""Finds and imports a model's Python file, so that its own imports work as in Triton.

The version directory and the model directory are at the end of sys.path. model.py is the module
`<version>.model`, in a package whose path is the version directory, so that `import x` and
`from . import x` both work, and a module named `model` does not conflict. A model without its own
file uses the model.py of its backend (backends/<name>/model.py).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from naiad.errors import Code, NaiadError, internal, invalid_arg
from naiad.ipc.work import LoadArguments

MODEL_CLASS = "TritonPythonModel"
MODULES_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules")
"""Has `triton_python_backend_utils` for processes that the model starts.

`multiprocessing` passes on sys.path but not sys.modules.
"""


def version_dir(arguments: LoadArguments) -> str:
    return os.path.join(arguments.model_dir, str(arguments.model_version))


def import_model_class(arguments: LoadArguments) -> type[Any]:
    """Raises NaiadError if there is no such file or class, or any exception of the model's code."""
    directory, filename = find_model_file(arguments)
    extend_path([version_dir(arguments), arguments.model_dir, directory, MODULES_DIR])
    package = str(arguments.model_version)
    module = import_file(package, directory, filename)
    model_class = getattr(module, MODEL_CLASS, None)
    if model_class is None:
        raise internal(
            f"AttributeError: module '{module.__name__}' has no attribute '{MODEL_CLASS}'"
        )
    return model_class  # type: ignore[no-any-return]


def find_model_file(arguments: LoadArguments) -> tuple[str, str]:
    """Returns (directory, filename). Raises NaiadError."""
    filename = arguments.model_filename or "model.py"
    if not filename.endswith(".py"):
        raise invalid_arg(f"Model name must end with '.py'. Model name is \"{filename}\".")
    for directory, name in (
        (version_dir(arguments), filename),
        (arguments.backend_dir, "model.py"),
    ):
        if directory and os.path.isfile(os.path.join(directory, name)):
            return directory, name
    raise _not_found(arguments, filename)


def _not_found(arguments: LoadArguments, filename: str) -> NaiadError:
    places = f"'{arguments.model_name}/{arguments.model_version}/{filename}'"
    if arguments.backend_dir:
        places += f" or '{os.path.basename(arguments.backend_dir)}/model.py'"
    path = os.path.join(version_dir(arguments), filename)
    return NaiadError(
        Code.INTERNAL,
        f"Python model file not found in {places}",
        # Triton's line in the log; clients see no paths.
        details=f"Failed to preinitialize Python stub: Python model file not found in '{path}'",
    )


def extend_path(directories: list[str]) -> None:
    for directory in directories:
        if directory not in sys.path:
            sys.path.append(directory)


def import_file(package: str, directory: str, filename: str) -> ModuleType:
    parent = ModuleType(package)
    parent.__path__ = [directory]
    sys.modules[package] = parent
    name = f"{package}.{filename.removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, os.path.join(directory, filename))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
