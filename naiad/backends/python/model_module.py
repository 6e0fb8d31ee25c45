"""Finding and importing a model's Python file, so that its own imports work as under Triton.

The version directory and the model directory are at the end of sys.path; model.py is the module
`<version>.model`, in a package whose path is the version directory, so neither `import helper`,
`from . import helper` nor a module called `model` gets in its way. A backend that is a model.py of
its own (backends/<name>/model.py) stands in for models without one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from naiad.core.work import LoadArguments
from naiad.errors import NaiadError, internal, invalid_arg

MODEL_CLASS = "TritonPythonModel"
MODULES_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules")
"""For processes that the model starts: `multiprocessing` hands sys.path on, not sys.modules."""


def version_dir(arguments: LoadArguments) -> str:
    return os.path.join(arguments.model_dir, str(arguments.model_version))


def import_model_class(arguments: LoadArguments) -> type[Any]:
    """Raises NaiadError where there is no such file or class, and whatever the model's code
    raises."""
    directory, filename = _find(arguments)
    extend_path([version_dir(arguments), arguments.model_dir, directory, MODULES_DIR])
    package = str(arguments.model_version)
    module = import_file(package, directory, filename)
    model_class = getattr(module, MODEL_CLASS, None)
    if model_class is None:
        raise internal(
            f"AttributeError: module '{module.__name__}' has no attribute '{MODEL_CLASS}'"
        )
    return model_class  # type: ignore[no-any-return]


def _find(arguments: LoadArguments) -> tuple[str, str]:
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
    return internal(f"Python model file not found in {places}")


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
