"""Checks of files that come from somebody's browser: their paths, and that none is a pickle.

In:  a path as a client sent it, or a file that is complete. Out: nothing, or NaiadError with the
     reason.
Rule: only names, tables of contents and first bytes are read. Nothing is unpickled or run.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path, PurePosixPath

from naiad.backends.torch.archive import FileKind, file_kind, require_no_pickle
from naiad.errors import NaiadError, invalid_arg

MAX_PATH_CHARS = 1024
MAX_PART_BYTES = 200
_PICKLE_SUFFIXES = frozenset({".pkl", ".pickle", ".joblib", ".p", ".dill", ".cloudpickle"})
_TORCH_SUFFIXES = frozenset({".pt", ".pth", ".ts", ".torchscript", ".pt2", ".ckpt"})
_TORCH_BIN = re.compile(r"(pytorch_model|training_args|optimizer|scheduler|adapter_model).*\.bin")
_OTHER_FORMATS = frozenset({".safetensors", ".onnx", ".gguf", ".txt", ".json", ".py", ".xml"})
"""The first bytes of these may look like those of a pickle by chance: a length, or text."""
_START = re.compile(rb"\x80[\x02-\x05]")
_STOP = b"."


def check_path(path: str) -> str:
    """Returns the path. Raises NaiadError for one that leads out of its folder, or that a
    repository cannot have."""
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or re.match(r"[A-Za-z]:", path):
        raise _bad_path(path, "it must be relative, with '/' between its parts")
    if any(part in ("", ".", "..") for part in parts):
        raise _bad_path(path, "it leads out of its folder, or has an empty part")
    if any(part.startswith(".") for part in parts):
        raise _bad_path(path, "names that begin with a dot are hidden")
    if len(path) > MAX_PATH_CHARS or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        raise _bad_path(path, "it is too long")
    if not path.isprintable():
        raise _bad_path(path, "it has control characters")
    return path


def check_content(file: Path, shown: str, *, allow_pickle: bool) -> None:
    """Raises NaiadError for a pickle, unless the operator allows them."""
    if allow_pickle:
        return
    suffix, name = PurePosixPath(shown).suffix.lower(), PurePosixPath(shown).name
    if suffix in _PICKLE_SUFFIXES or _is_bare_pickle(file, suffix):
        raise _pickled(shown, "it is a pickle")
    is_torch = suffix in _TORCH_SUFFIXES or _TORCH_BIN.fullmatch(name) is not None
    if not is_torch and not _has_pickled_data(file):
        return
    try:
        kind = file_kind(str(file), shown)
        if kind is FileKind.EXPORTED:
            require_no_pickle(str(file), shown)
    except NaiadError as error:
        raise invalid_arg(error.message) from None
    if kind is FileKind.PICKLE:
        advice = (
            "save the weights as safetensors (model.save_pretrained does)"
            if suffix == ".bin"
            else "save it as TorchScript (torch.jit.save) or with torch.export.save"
        )
        raise _pickled(shown, f"torch.save wrote it, as a pickle; {advice}")


def _is_bare_pickle(file: Path, suffix: str) -> bool:
    if suffix in _OTHER_FORMATS:
        return False
    with file.open("rb") as opened:
        if _START.match(opened.read(2)) is None:
            return False
        opened.seek(-1, 2)
        return opened.read(1) == _STOP


def _has_pickled_data(file: Path) -> bool:
    """Whether this is a zip file with a data.pkl, under any name."""
    if not zipfile.is_zipfile(file):
        return False
    try:
        return file_kind(str(file), file.name) is FileKind.PICKLE
    except NaiadError:
        return False


def _bad_path(path: str, reason: str) -> NaiadError:
    return invalid_arg(f"the path '{path[:200]}' is refused: {reason}")


def _pickled(shown: str, reason: str) -> NaiadError:
    return invalid_arg(
        f"'{shown}' is refused: {reason}. Unpickling runs whatever code a file contains, so pickles"
        " are accepted only if the server is started with --console-allow-pickle=true"
    )
