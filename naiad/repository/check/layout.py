"""Mistakes in the layout of a repository that Triton does not explain: a model given as repository,
no models, a model file outside of a version directory.

In:  the path of a local repository. Out: hints, for `naiad check` and for a server that starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from naiad.repository.config.autocomplete import MODEL_FILES
from naiad.repository.scan import CONFIG_FILE

EMPTY = "there are no models in this repository"
EMPTY_EXPECTED = "one directory per model, each with a version directory such as 1"
_FILES = (*MODEL_FILES.values(), "model.json")


def is_model_directory(path: Path) -> bool:
    """Whether this looks like one model: it has a config.pbtxt, or nothing but version
    directories."""
    if (path / CONFIG_FILE).is_file():
        return True
    folders = _folders(path)
    return bool(folders) and all(
        folder.isdigit() and any((path / folder / file).exists() for file in _FILES)
        for folder in folders
    )


def misplaced_file(model: Path) -> str:
    """The model file that lies next to the version directories instead of in one."""
    if any(folder.isdigit() for folder in _folders(model)):
        return ""
    return next((file for file in _FILES if (model / file).exists()), "")


def layout_hints(path: Path) -> list[str]:
    """One sentence for each mistake. Empty for a path that cannot be read."""
    if not path.is_dir():
        return []
    if is_model_directory(path):
        parent = path.resolve().parent
        return [f"'{path}' is a model, not a repository of models: use --model-repository {parent}"]
    models = _folders(path)
    if not models:
        return [f"'{path}': {EMPTY}, expected {EMPTY_EXPECTED}"]
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
