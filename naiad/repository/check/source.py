"""Checks a Python model's source without running it: whether it parses, whether it defines
TritonPythonModel, and whether what it imports is installed. Part of check."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from naiad.repository.check.packages import IsInstalled, check_imports, is_installed
from naiad.repository.config.problem import Problem
from naiad.repository.config.source_map import Position


def check_python_source(
    path: Path,
    shown: str,
    *,
    has_tensors: bool,
    folders: Sequence[Path] = (),
    is_installed: IsInstalled = is_installed,
) -> Iterator[Problem]:
    """Imports are checked if `folders` are given, which are on the path of the model's worker."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        source = getattr(error, "text", None) or ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        yield Problem(
            code="python-syntax",
            message=f"SyntaxError: {reason}",
            file=shown,
            position=Position(line, getattr(error, "offset", None) or 1),
            source=source,
            expected="valid Python for this interpreter",
        )
        return
    except OSError as error:
        yield Problem(
            code="unreadable",
            message=f"cannot read the file: {error.strerror}",
            file=shown,
            expected="a readable file",
        )
        return
    yield from _check_class(tree, shown, has_tensors=has_tensors)
    if folders:
        yield from check_imports(tree, shown, folders, is_installed)


def _check_class(tree: ast.Module, shown: str, *, has_tensors: bool) -> Iterator[Problem]:
    """Reports nothing if the class may come from elsewhere: an import, an assignment, a base
    class."""
    model = next(
        (
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel"
        ),
        None,
    )
    if model is None:
        if "TritonPythonModel" not in _other_names(tree):
            yield Problem(
                code="python-class",
                message="the model has no class TritonPythonModel",
                file=shown,
                found=", ".join(
                    f"class {node.name}" for node in tree.body if isinstance(node, ast.ClassDef)
                )
                or "no class",
                expected="class TritonPythonModel with def execute(self, requests)",
            )
        return
    methods = {
        node.name for node in model.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    names = methods | {
        name for node in model.body if isinstance(node, ast.Assign) for name in _targets(node)
    }
    if model.bases or model.decorator_list:
        return
    position = Position(model.lineno, 1)
    if "execute" not in names:
        shown_methods = ", ".join(sorted(methods)) or "no method"
        message = f"Python model {shown} does not implement `execute` method."
        expected = "def execute(self, requests)"
        yield Problem(
            code="python-execute",
            message=message,
            file=shown,
            position=position,
            found=shown_methods,
            expected=expected,
        )
    if not has_tensors and "auto_complete_config" not in names:
        yield Problem(
            code="no-tensors",
            message="the model has no inputs and outputs: config.pbtxt names none, "
            "and there is no auto_complete_config",
            file=shown,
            position=position,
            found="neither",
            expected="input and output in config.pbtxt, "
            "or a static method auto_complete_config that adds them",
        )


def _other_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            # `import *` may import any name.
            names.update(
                "TritonPythonModel" if alias.name == "*" else alias.asname or alias.name
                for alias in node.names
            )
        elif isinstance(node, ast.Assign):
            names.update(_targets(node))
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
    return names


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]
