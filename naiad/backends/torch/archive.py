"""Determines the kind of a PyTorch file from its table of contents, without loading it.

Kinds are TorchScript, a torch.export program, an AOTInductor package (native code), and a
state_dict or whole module written by torch.save.
Rule: a file that can only be read by unpickling it is rejected, unless the config sets
      UNSAFE_ALLOW_PICKLE.
"""

from __future__ import annotations

import enum
import json
import os
import zipfile

from naiad.errors import internal, invalid_arg

UNSAFE_ALLOW_PICKLE = "UNSAFE_ALLOW_PICKLE"
_OPAQUE_OBJECT = "opaque_obj_"
_PAYLOAD_CONFIGS = ("_weights_config.json", "_constants_config.json")
_MAX_CONFIG_BYTES = 64 << 20


class FileKind(enum.Enum):
    TORCHSCRIPT = "TorchScript"
    EXPORTED = "torch.export"
    AOT = "AOTInductor"
    PICKLE = "torch.save"


def file_kind(path: str, shown: str) -> FileKind:
    """Raises NaiadError if it is not a PyTorch file. `shown` is the path for messages."""
    if not os.path.isfile(path):
        raise internal(f"unable to find '{shown}': no such file")
    names = _names(path)
    if names is None:
        with open(path, "rb") as file:
            start = file.read(2)
        if start[:1] == b"\x80" and start[1:] and start[1] <= 5:
            return FileKind.PICKLE
        raise internal(
            f"'{shown}' is not a PyTorch file, or it is truncated ({os.path.getsize(path)} bytes)"
        )
    if any("/data/aotinductor/" in name for name in names):
        return FileKind.AOT
    if (
        any("/models/" in name and name.endswith(".json") for name in names)
        or "serialized_exported_program.json" in names
    ):
        return FileKind.EXPORTED
    if any("/code/" in name for name in names) or any(
        name.endswith("/constants.pkl") for name in names
    ):
        return FileKind.TORCHSCRIPT
    if any(name.endswith("/data.pkl") for name in names):
        return FileKind.PICKLE
    raise internal(f"'{shown}' is a zip file, but PyTorch has not written it")


def _names(path: str) -> list[str] | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return None


def require_no_pickle(path: str, shown: str) -> None:
    """Raises NaiadError if a torch.export program has pickled parts.

    PyTorch's loader would unpickle them without a check.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = [name for name in names if os.path.basename(name).startswith(_OPAQUE_OBJECT)]
        for name in names:
            if name.endswith(_PAYLOAD_CONFIGS):
                pickled += _pickled_payloads(archive, name)
    if pickled:
        raise pickle_error(f"'{shown}' holds pickled parts ({', '.join(sorted(set(pickled))[:3])})")


def _pickled_payloads(archive: zipfile.ZipFile, name: str) -> list[str]:
    if archive.getinfo(name).file_size > _MAX_CONFIG_BYTES:
        return [name]
    try:
        entries = json.loads(archive.read(name))["config"]
        # Pickled tensors are loaded by torch.load with weights only, which is safe. Other pickled
        # objects are not.
        return [
            entry["path_name"]
            for entry in entries.values()
            if str(entry["path_name"]).startswith(_OPAQUE_OBJECT)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [name]


def pickle_error(subject: str) -> Exception:
    return invalid_arg(
        f"{subject}: unpickling runs whatever code the file contains. If you trust its author, set "
        f'parameter {UNSAFE_ALLOW_PICKLE} to "true" in config.pbtxt; better, save the model with '
        "torch.export.save"
    )
