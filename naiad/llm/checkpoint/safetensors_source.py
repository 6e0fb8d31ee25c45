"""Reads tensors of a Hugging Face folder directly to the device, from one safetensors file or from
several with an index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from naiad.errors import invalid_arg, not_found
from naiad.files.regular_file import require_regular

INDEX = "model.safetensors.index.json"
MAX_NAME_BYTES = 255


class SafetensorsSource:
    def __init__(self, folder: Path, device: torch.device, file: str = "") -> None:
        """Reads all files of the folder, or one of them."""
        self._file_of: dict[str, Any] = {}
        for path in [folder / file] if file else _files(folder):
            require_regular(path, f"checkpoint '{folder.name}'")
            try:
                opened = safe_open(str(path), framework="pt", device=str(device))
            except SafetensorError as error:
                raise invalid_arg(f"{path.name} is not a safetensors file: {error}") from error
            for name in opened.keys():  # noqa: SIM118 - not a dictionary
                self._file_of[name] = opened

    def names(self) -> set[str]:
        return set(self._file_of)

    def get(self, name: str) -> Tensor:
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def shape(self, name: str) -> list[int]:
        return list(self._file_of[name].get_slice(name).get_shape())

    def get_rows(self, name: str, ranges: list[tuple[int, int]]) -> Tensor:
        """Reads only these rows, each range from its first to one before its second number."""
        whole = self._file_of[name].get_slice(name)
        parts: list[Tensor] = [whole[start:end] for start, end in ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def get_columns(self, name: str, start: int, end: int) -> Tensor:
        columns: Tensor = self._file_of[name].get_slice(name)[:, start:end]
        return columns


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _indexed_files(index: Path) -> list[str]:
    try:
        names = sorted(
            set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise invalid_arg(
            f"{INDEX} of checkpoint '{index.parent.name}' cannot be read: {error}"
        ) from error
    for name in names:
        if Path(name).name != name or not 0 < len(os.fsencode(name)) <= MAX_NAME_BYTES:
            raise invalid_arg(
                f"{INDEX} of checkpoint '{index.parent.name}' names the file '{name[:80]}', "
                "expected a file of the same folder"
            )
    return names


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        paths = [folder / name for name in _indexed_files(index)]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    missing = [path.name for path in paths if not path.exists()]
    if missing or not paths:
        raise not_found(
            f"checkpoint '{folder.name}' has no {', '.join(missing) or 'safetensors file'}"
        )
    return paths
