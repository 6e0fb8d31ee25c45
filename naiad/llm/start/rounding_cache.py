"""Keeps the matrices that were rounded at load, so that the next start reads them instead of the
16-bit ones.

In:  a checkpoint and a rounding name the folder. Out: one file per layer with the integers or fp8
     values, packed, and their scales.
Rule: a folder gets its name when everything in it is written. What cannot be written or read costs
      a line in the log and a slower start, never the start itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from naiad.llm.quantization.matrix import QuantizedMatrix, WeightKind
from naiad.llm.quantization.packing import pack, unpack

VERSION = 1
"""Version of the files and of the rounding. A change makes another folder."""
LIST = "files.json"
DRAFT = "making-"
HEAD_BYTES = 1 << 20
SAMPLE_BYTES = 4096
NUM_SAMPLES = 256
INT4_BITS = 4

Log = Callable[[str], None]


class _Fields(msgspec.Struct, frozen=True):
    """What a matrix has besides its tensors."""

    kind: str
    num_inputs: int
    has_quantized_inputs: bool


class RoundingCache:
    def __init__(self, target: Path, device: torch.device, log: Log) -> None:
        self._target = target
        self._device = device
        self._log = log
        self._draft: Path | None = None
        self._is_failed = False
        self.is_complete = self._check_complete()

    def read_layer(self, layer: int) -> dict[str, QuantizedMatrix]:
        """Returns the matrices of a layer by module. Valid only if the cache is complete. Raises
        OSError or ValueError if the file is damaged."""
        try:
            with safe_open(
                self._target / _file_name(layer), framework="pt", device=str(self._device)
            ) as file:
                fields = msgspec.json.decode(
                    file.metadata()["matrices"], type=dict[str, _Fields], strict=True
                )
                return {name: _read_matrix(file, name, one) for name, one in fields.items()}
        except (SafetensorError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise ValueError(str(error)) from error

    def keep_layer(self, layer: int, matrices: dict[str, QuantizedMatrix]) -> None:
        if self._is_failed or self.is_complete:
            return
        try:
            self._write_layer(layer, matrices)
        except OSError as error:
            self._give_up(error)
        except SafetensorError as error:
            self._give_up(OSError(str(error)))

    def finish(self) -> None:
        """Called when every layer was kept."""
        if self._draft is None or self._is_failed:
            return
        try:
            sizes = {entry.name: entry.stat().st_size for entry in sorted(self._draft.iterdir())}
            (self._draft / LIST).write_text(json.dumps(sizes))
            if self._target.exists():  # damaged, or another process was faster
                shutil.rmtree(self._target)
            os.rename(self._draft, self._target)
            self._draft = None
        except OSError as error:
            self._give_up(error)

    def discard(self) -> None:
        """Removes what was written so far, after a load that failed."""
        if self._draft is not None:
            shutil.rmtree(self._draft, ignore_errors=True)
            self._draft = None

    def _write_layer(self, layer: int, matrices: dict[str, QuantizedMatrix]) -> None:
        if self._draft is None:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            _remove_left_drafts(self._target.parent)
            self._draft = Path(
                tempfile.mkdtemp(dir=self._target.parent, prefix=f"{DRAFT}{os.getpid()}-")
            )
        tensors = {
            f"{name}.{part}": tensor
            for name, matrix in matrices.items()
            for part, tensor in _tensors(matrix).items()
        }
        needed = sum(tensor.nbytes for tensor in tensors.values())
        free = shutil.disk_usage(self._draft).free
        if free < needed:
            raise OSError(f"{needed >> 20} MiB are needed for a layer, {free >> 20} MiB are free")
        fields = {
            name: _Fields(matrix.kind.value, matrix.num_inputs, matrix.has_quantized_inputs)
            for name, matrix in matrices.items()
        }
        save_file(
            tensors,
            self._draft / _file_name(layer),
            metadata={"matrices": msgspec.json.encode(fields).decode()},
        )

    def _give_up(self, error: OSError) -> None:
        self._is_failed = True
        self.discard()
        self._log(
            f"the rounded weights cannot be kept in '{self._target.parent}' "
            f"({error.strerror or error}): they are made again at every start"
        )

    def _check_complete(self) -> bool:
        try:
            sizes: dict[str, int] = json.loads((self._target / LIST).read_bytes())
            return all((self._target / name).stat().st_size == n for name, n in sizes.items())
        except (OSError, ValueError, AttributeError):
            return False


def fingerprint(files: list[Path], rounding: str, dtype: torch.dtype) -> str:
    """Returns a name for the rounded weights of a checkpoint: by the sizes, times and beginnings of
    its files and samples of their bytes, because to read all of them would take longer than to
    round them."""
    digest = hashlib.sha256(f"{VERSION} {rounding} {dtype}".encode())
    for path in sorted(files):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        with path.open("rb") as file:
            digest.update(file.read(HEAD_BYTES))
            for index in range(NUM_SAMPLES):
                file.seek(status.st_size * index // NUM_SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _remove_left_drafts(parent: Path) -> None:
    """Removes drafts of processes that are gone, for example killed while they loaded."""
    for entry in parent.glob(f"{DRAFT}*"):
        pid = entry.name.removeprefix(DRAFT).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(entry, ignore_errors=True)


def _file_name(layer: int) -> str:
    return f"layer-{layer:05}.safetensors"


def _tensors(matrix: QuantizedMatrix) -> dict[str, Tensor]:
    values = matrix.values
    if matrix.kind is WeightKind.INT4:
        values = pack(values, INT4_BITS, 1)
    tensors = {"values": values, "scales": matrix.scales}
    if matrix.zeros is not None:
        tensors["zeros"] = matrix.zeros
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _read_matrix(file: Any, name: str, fields: _Fields) -> QuantizedMatrix:
    kind = WeightKind(fields.kind)
    values: Tensor = file.get_tensor(f"{name}.values")
    if kind is WeightKind.INT4:
        values = unpack(values, INT4_BITS, 1)[:, : fields.num_inputs]
    has_zeros = f"{name}.zeros" in file.keys()  # noqa: SIM118 - it is not a dict
    return QuantizedMatrix(
        kind,
        values,
        file.get_tensor(f"{name}.scales"),
        file.get_tensor(f"{name}.zeros") if has_zeros else None,
        has_quantized_inputs=fields.has_quantized_inputs,
    )
