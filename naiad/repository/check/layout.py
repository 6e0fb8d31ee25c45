"""Mistakes in the layout of a repository that Triton does not explain: a model given as repository,
no models, a model file outside of a version directory.

In:  the path of a local repository. Out: hints, for `naiad check` and for a server that starts.
Rule: what cannot be read has no hint. os.path says that it does not exist, Path.exists raises.
"""

from __future__ import annotations

import os
from pathlib import Path

from naiad.repository.config.autocomplete import MODEL_FILES
from naiad.repository.scan import CONFIG_FILE

LOOSE_SUFFIXES = (".onnx", ".xml", ".pt", ".pt2", ".plan")
SINGLE_SUFFIXES = (".onnx", ".xml", ".pt2", ".gguf")
"""Files that `naiad serve --model FILE` can serve."""
EMPTY = "there are no models in this repository"
EMPTY_EXPECTED = "one directory per model, each with a version directory such as 1"
_FILES = (*MODEL_FILES.values(), "model.json")


def is_model_directory(path: Path) -> bool:
    """Whether this looks like one model: it has a config.pbtxt, or nothing but version
    directories."""
    if os.path.isfile(path / CONFIG_FILE):
        return True
    folders = _folders(path)
    return bool(folders) and all(
        folder.isdigit() and any(os.path.exists(path / folder / file) for file in _FILES)
        for folder in folders
    )


def misplaced_file(model: Path) -> str:
    """The model file that lies next to the version directories instead of in one."""
    if any(folder.isdigit() for folder in _folders(model)):
        return ""
    return next((file for file in _FILES if os.path.exists(model / file)), "")


def loose_file(path: Path) -> str:
    """Where to move the first model file that lies in the repository itself; empty if there is
    none."""
    for name in sorted(os.listdir(path)):
        file = path / name
        if file.suffix in LOOSE_SUFFIXES and os.path.isfile(file):
            place = path / file.stem / "1" / f"model{file.suffix}"
            return f"move {file} to {place}"
    return ""


def layout_hints(path: Path) -> list[str]:
    """One sentence for each mistake. Empty for a path that cannot be read."""
    if os.path.isfile(path) and path.suffix in SINGLE_SUFFIXES:
        return [f"'{path}' is a file: serve it with --model {path}"]
    if not os.access(path, os.R_OK) or not os.path.isdir(path):
        return []
    if is_model_directory(path):
        parent = path.resolve().parent
        return [f"'{path}' is a model, not a repository of models: use --model-repository {parent}"]
    models = _folders(path)
    if not models:
        hint = loose_file(path)
        return [f"'{path}': {EMPTY}, expected {EMPTY_EXPECTED}" + (f"; {hint}" if hint else "")]
    return [
        f"'{path / name / file}' is not in a version directory: move it to "
        f"{path / name / '1' / file}"
        for name in models
        if (file := misplaced_file(path / name))
    ]


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return sorted(name for name in names if not name.startswith("."))
