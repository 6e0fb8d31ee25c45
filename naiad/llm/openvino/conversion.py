"""A GGUF file -> a folder with its OpenVINO model and tokenizer, made once and kept by the file's
content.

In:  a GGUF file, a cache folder. Out: Conversion, whose `folder` a pipeline can open for as long as
     the object lives.
Rules: a folder is written under another name and renamed when it is whole; what does not match its
       own list of hashes is made again; when the cache cannot be written, the folder is a temporary
       one, and the log says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import openvino
import openvino_genai

from naiad.errors import unavailable
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.openvino.form import ModelForm
from naiad.llm.openvino.model import build_model

VERSION = 3
"""Version of the files that this module and model.py write. A change makes another folder."""
MODEL = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
TOKENIZER = "openvino_tokenizer.xml"
LIST = "files.json"
"""The other files' names and SHA-256."""
SPARE_BYTES = 16 << 20
"""Room for the model's text and the tokenizer."""

Log = Callable[[str], None]


class Conversion:
    def __init__(self, folder: Path, *, is_temporary: bool = False) -> None:
        self.folder = folder
        if is_temporary:
            weakref.finalize(self, shutil.rmtree, folder, True)

    @property
    def has_tokenizer(self) -> bool:
        """OpenVINO reads no SentencePiece tokenizers from GGUF; without one it cannot follow a
        grammar."""
        return (self.folder / TOKENIZER).exists()


def convert(
    path: Path,
    file: GgufFile,
    config: DecoderConfig,
    cache: Path,
    log: Log,
    form: ModelForm,
) -> Conversion:
    """Raises NaiadError."""
    name = f"{_sha256(path)}-{VERSION}-{form.name}-{openvino.__version__.split('-')[0]}"
    target = cache / "openvino" / name
    if target.exists():
        if _is_whole(target):
            return Conversion(target)
        log(f"the converted model in '{target}' is damaged: converting '{path.name}' again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="making-") as parent:
            made = Path(parent) / "made"
            made.mkdir()
            log(f"converting '{path.name}' for OpenVINO, kept in '{target}'")
            _write(file, config, made, form)
            _put(made, target)
        return Conversion(target)
    except OSError as error:
        log(
            f"the converted model cannot be kept in '{target.parent}' ({_reason(error)}): it is "
            "made again at every start"
        )
    return _convert_for_now(path, file, config, form)


def _convert_for_now(
    path: Path, file: GgufFile, config: DecoderConfig, form: ModelForm
) -> Conversion:
    try:
        made = Conversion(Path(tempfile.mkdtemp(prefix="naiad-")), is_temporary=True)
        _write(file, config, made.folder, form)
    except OSError as error:
        raise unavailable(
            f"'{path.name}' cannot be converted for OpenVINO: neither the cache nor "
            f"'{tempfile.gettempdir()}' can be written "
            f"({_reason(error)}); the native engine needs no room on disk"
        ) from None
    return made


def _write(file: GgufFile, config: DecoderConfig, folder: Path, form: ModelForm) -> None:
    """Raises OSError when there is no room."""
    model = build_model(file, config, form)
    num_bytes = sum(
        node.get_byte_size() for node in model.get_ops() if node.get_type_name() == "Constant"
    )
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes + SPARE_BYTES:
        raise OSError(
            f"{(num_bytes + SPARE_BYTES) >> 20} MiB are needed, {free_bytes >> 20} MiB are free"
        )
    try:
        openvino.serialize(model, folder / MODEL, folder / WEIGHTS)
    except RuntimeError as error:
        raise OSError(str(error).splitlines()[-1]) from None
    _check_written(folder)
    _write_tokenizer(file, folder)
    hashes = {entry.name: _sha256(entry) for entry in sorted(folder.iterdir())}
    (folder / LIST).write_text(json.dumps(hashes, indent=1))


def _check_written(folder: Path) -> None:
    """OpenVINO does not tell of a disk that became full while it wrote; its reader finds what is
    missing."""
    try:
        openvino.Core().read_model(folder / MODEL)
    except RuntimeError:
        raise OSError("the disk is full") from None


def _write_tokenizer(file: GgufFile, folder: Path) -> None:
    """OpenVINO writes it next to the GGUF file that it reads, and refuses files with tensors of
    types that it does not know."""
    keys = folder / "keys.gguf"
    keys.write_bytes(file.without_tensors())
    try:
        openvino_genai.Tokenizer(str(keys), enable_save_ov_model=True)
    except Exception:  # its reader raises whatever it stumbles over
        for entry in folder.glob("openvino_*tokenizer.*"):
            entry.unlink()
    finally:
        keys.unlink()


def _put(made: Path, target: Path) -> None:
    """Another process may have been faster: what is whole stays."""
    if target.exists() and not _is_whole(target):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(target)
    try:
        os.rename(made, target)
    except OSError:
        if not _is_whole(target):
            raise


def _is_whole(folder: Path) -> bool:
    try:
        hashes = json.loads((folder / LIST).read_bytes())
        return {MODEL, WEIGHTS} <= hashes.keys() and all(
            _sha256(folder / name) == value for name, value in hashes.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
