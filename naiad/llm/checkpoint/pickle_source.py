"""Reads tensors of pytorch_model*.bin files. This needs an explicit option. Files are loaded with
`weights_only`, so no code in them runs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from naiad.errors import not_found

INDEX = "pytorch_model.bin.index.json"


class PickleSource:
    def __init__(self, folder: Path) -> None:
        index = folder / INDEX
        names = (
            sorted(set(json.loads(index.read_text())["weight_map"].values()))
            if index.exists()
            else ["pytorch_model.bin"]
        )
        self._tensors: dict[str, Tensor] = {}
        for name in names:
            path = folder / name
            if not path.exists():
                raise not_found(f"checkpoint '{folder.name}' has no {name}")
            self._tensors.update(torch.load(path, map_location="cpu", weights_only=True, mmap=True))

    def names(self) -> set[str]:
        return set(self._tensors)

    def get(self, name: str) -> Tensor:
        return self._tensors[name]
