"""Finds the imports with which a model's Python file begins, and runs them without the file.

In:  load arguments. Out: import statements of installed modules, in order.
Modules next to the model are read in the same way instead of being imported, so that every instance
runs all of the model's own code itself.
Rule: the list ends with the first statement that may do anything other than import or define,
      because what comes after may depend on it (`os.environ[...] = ...`, `sys.path.append(...)`).
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

from naiad.backends.python.model_module import find_model_file, version_dir
from naiad.errors import NaiadError
from naiad.ipc.work import LoadArguments

ImportStatement = ast.Import | ast.ImportFrom

_CHEAP = sys.stdlib_module_names | {
    "numpy",
    "triton_python_backend_utils",
    "c_python_backend_utils",
}
"""Modules that the template of the backend has imported, or that take no time."""


def leading_imports(arguments: LoadArguments) -> list[ImportStatement]:
    """Returns an empty list for a file that does not exist or cannot be parsed."""
    try:
        directory, filename = find_model_file(arguments)
    except NaiadError:
        return []
    folders = [Path(version_dir(arguments)), Path(arguments.model_dir), Path(directory)]
    scan = _Scan(folders)
    scan.read(Path(directory, filename))
    return scan.imports


def imports_are_costly(arguments: LoadArguments) -> bool:
    """True if a template with the model's imports is worth its start."""
    return any(
        name.partition(".")[0] not in _CHEAP
        for statement in leading_imports(arguments)
        for name in _module_names(statement)
    )


def run_imports(statements: list[ImportStatement]) -> None:
    """Raises what an import raises."""
    for statement in statements:
        module = ast.Module([statement], type_ignores=[])
        exec(compile(module, "<imports of the model>", "exec"), {"__name__": __name__})


def _module_names(statement: ImportStatement) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [statement.module or ""]
    return [alias.name for alias in statement.names]


class _Scan:
    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._seen: set[Path] = set()
        self.imports: list[ImportStatement] = []

    def read(self, file: Path) -> bool:
        """True if all of the file was read: it only imports and defines."""
        if file in self._seen:
            return True
        self._seen.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return False
        return all(self._read_statement(statement, file.parent) for statement in tree.body)

    def _read_statement(self, statement: ast.stmt, folder: Path) -> bool:
        if isinstance(statement, ast.Import):
            return all(self._read_import(alias) for alias in statement.names)
        if isinstance(statement, ast.ImportFrom):
            return self._read_from(statement, folder)
        return _only_defines(statement)

    def _read_import(self, alias: ast.alias) -> bool:
        files = _files_of(alias.name, self._folders)
        if files:
            return all(self.read(file) for file in files)
        self.imports.append(_located(ast.Import([alias])))
        return True

    def _read_from(self, statement: ast.ImportFrom, folder: Path) -> bool:
        if statement.level == 0:
            files = _files_of(statement.module or "", self._folders)
            if not files:
                if statement.module != "__future__":
                    self.imports.append(statement)
                return True
            return all(self.read(file) for file in files)
        for _ in range(statement.level - 1):
            folder = folder.parent
        modules = [statement.module] if statement.module else [a.name for a in statement.names]
        files = [file for name in modules for file in _files_of(name, [folder])]
        return bool(files) and all(self.read(file) for file in files)


def _files_of(module: str, folders: list[Path]) -> list[Path]:
    """The files that are run when a module next to the model is imported: its packages and itself.
    Returns an empty list for an installed module."""
    for folder in folders:
        files: list[Path] = []
        path = folder
        for part in module.split("."):
            path = path / part
            if path.with_name(f"{part}.py").is_file():
                files.append(path.with_name(f"{part}.py"))
            elif path.is_dir():
                files.append(path / "__init__.py")
            else:
                break
        if files:
            return [file for file in files if os.path.exists(file)]
    return []


def _only_defines(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return True
        case ast.Expr(value=ast.Constant()):
            return True  # a docstring
        case ast.Assign(targets=targets, value=value):
            return all(isinstance(target, ast.Name) for target in targets) and _is_literal(value)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or _is_literal(value)
        case _:
            return False


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _located(statement: ast.Import) -> ast.Import:
    return ast.fix_missing_locations(statement)
