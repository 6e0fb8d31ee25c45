"""The built-in catalogue: models that somebody can deploy without a file of their own."""

from __future__ import annotations

from typing import Literal

import msgspec

from naiad.backends.llm.checkpoint import PULLED, cache_dir

STARTERS = {"double": "python", "double-onnx": "onnx"}
"""Name in the catalogue -> kind of `naiad init`."""


class CatalogueItem(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["starter", "checkpoint"]
    backend: str
    description: str
    is_here: bool = True
    """False if it has to be downloaded first."""


def catalogue() -> list[CatalogueItem]:
    items = [
        CatalogueItem(
            "double",
            "starter",
            "python",
            "A Python model that doubles its input: a model.py to start from.",
        ),
        CatalogueItem("double-onnx", "starter", "onnxruntime", "The same as an ONNX file."),
    ]
    return items + [
        CatalogueItem(
            name,
            "checkpoint",
            "llm",
            f"A small language model ({file}).",
            (cache_dir() / file).is_file(),
        )
        for name, file in PULLED.items()
    ]
