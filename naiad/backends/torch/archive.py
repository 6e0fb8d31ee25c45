"""What kind of PyTorch file this is, read from its table of contents: nothing of it is loaded, let
alone run.

TorchScript, a torch.export program, an AOTInductor package (native code), a state_dict or whole
pickled module of torch.save.
Rule: a file that can only be read by unpickling it is refused, unless the config says
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
    """`shown` is the path as messages name it. Raises NaiadError for what is no PyTorch file."""
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
    raise internal(f"'{shown}' is a zip file, but none that PyTorch has written")


def _names(path: str) -> list[str] | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return None


def require_no_pickle(path: str, shown: str) -> None:
    """For a torch.export program, whose loader would unpickle such parts without asking. Raises
    NaiadError."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = [name for name in names if os.path.basename(name).startswith(_OPAQUE_OBJECT)]
        for name in names:
            if name.endswith(_PAYLOAD_CONFIGS):
                pickled += _pickled_payloads(archive, name)
    if pickled:
        raise refused(f"'{shown}' holds pickled parts ({', '.join(sorted(set(pickled))[:3])})")


def _pickled_payloads(archive: zipfile.ZipFile, name: str) -> list[str]:
    if archive.getinfo(name).file_size > _MAX_CONFIG_BYTES:
        return [name]
    try:
        entries = json.loads(archive.read(name))["config"]
        # Tensors that are pickled go through torch.load, which is held to weights only; any other
        # object is the danger.
        return [
            entry["path_name"]
            for entry in entries.values()
            if str(entry["path_name"]).startswith(_OPAQUE_OBJECT)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [name]


def refused(what: str) -> Exception:
    return invalid_arg(
        f"{what}: unpickling runs whatever code the file contains. If you trust its author, set parameter {UNSAFE_ALLOW_PICKLE} to "
        '"true" in config.pbtxt; better, save the model with torch.export.save'
    )
