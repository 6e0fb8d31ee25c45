"""What `naiad check` asks the completion process, and what it returns: JSON on its standard input
and output."""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.ipc.work import LoadArguments


class Example(msgspec.Struct, frozen=True):
    """An input to run the model with: `NAME=SHAPE[:DATATYPE]`, with the batch dimension. NAME may
    be left out for a model with one input."""

    name: str
    shape: list[int]
    datatype: str = ""


class CompletionRequest(msgspec.Struct, frozen=True):
    backend: str
    arguments: LoadArguments
    examples: list[Example] = []
    should_complete: bool = True
    should_load: bool = False
    """Load the model, too, with the completed config."""


class CompletionResult(msgspec.Struct, frozen=True):
    fields: dict[str, Any] = {}
    """The completed config, as JSON has it."""
    error: str = ""
