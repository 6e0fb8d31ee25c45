"""Checks that what a model imports is installed: the package of its backend, the modules of its
Python source. Part of check.

In:  a configuration, and the syntax tree of a Python model. Out: problems. Nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from naiad.core.install_advice import install_command
from naiad.repository.config.config import ModelConfigFile
from naiad.repository.config.problem import Problem, ProblemList
from naiad.repository.config.source_map import Position

IsInstalled = Callable[[str], bool]
_PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
    "pytorch": ("torch", "pytorch"),
}
"""Backend -> the package that it needs, and the extra of ours that installs it."""
_PROVIDED = frozenset({"triton_python_backend_utils", "c_python_backend_utils"})
"""Modules that a worker adds."""


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def package_of(backend: str) -> str:
    """The package of a backend whose models are files; empty for others."""
    return _PACKAGES.get(backend, ("", ""))[0]


def check_package(file: ModelConfigFile, is_installed: IsInstalled) -> list[Problem]:
    found = ProblemList(file.lines)
    backend = file.config.backend
    package, extra = _PACKAGES.get(backend, ("", ""))
    if package and not is_installed(package):
        found.add(
            "backend-package",
            f"backend '{backend}' needs the package {package}, which is not installed",
            "backend",
            found=f"no package {package} in {sys.prefix}",
            expected=f"{package}, from the extra '{extra}'",
            fix=install_command(extra),
        )
    return found.problems


def check_imports(
    tree: ast.Module, shown: str, folders: Sequence[Path], is_installed: IsInstalled
) -> Iterator[Problem]:
    """Checks the imports that run whenever the model is imported. `folders` are on the path of its
    worker."""
    for statement in tree.body:
        if "sys.path" in ast.unparse(statement) and not isinstance(statement, ast.ClassDef):
            return  # from here on only the model knows where its modules are
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            names = [statement.module]
        else:
            continue
        for name in names:
            package = name.partition(".")[0]
            if package in _PROVIDED or package in sys.builtin_module_names:
                continue
            if _is_in(package, folders) or is_installed(package):
                continue
            yield Problem(
                code="python-import",
                message=f"No module named '{package}'",
                file=shown,
                position=Position(statement.lineno, 1),
                source=ast.unparse(statement),
                found=f"no module '{package}' in {sys.prefix} or next to the model",
                expected="a module that is installed where Naiad is, or in the model's environment",
                fix=f"install the package that has the module '{package}', or list it in a "
                "requirements.txt next to config.pbtxt",
            )


def _is_in(package: str, folders: Sequence[Path]) -> bool:
    return PathFinder.find_spec(package, [str(folder) for folder in folders]) is not None
