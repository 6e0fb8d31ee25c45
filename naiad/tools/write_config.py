"""Writes config.pbtxt files from what the model files declare, for `naiad check --write`.

In:  repositories, and example inputs for models whose files do not declare shapes.
Out: a config.pbtxt for every model that does not have one, and a list of the results.
Rule: an existing config.pbtxt is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from naiad.core.datatype import DATATYPES
from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.completion_request import Example
from naiad.repository.deploy.config_text import render_config
from naiad.repository.deploy.inspection import read_from_model
from naiad.repository.scan import CONFIG_FILE, scan_repository

_EXAMPLE = re.compile(
    r"(?:(?P<name>[^=]+)=)?(?P<shape>\d+(?:[,x]\d+)*)(?::(?P<datatype>[A-Za-z0-9_]+))?"
)


class Written(msgspec.Struct, frozen=True):
    path: Path
    error: str = ""
    """The reason why nothing was written; empty on success."""


def parse_example(text: str) -> Example:
    """Parses the text of --example. Raises NaiadError."""
    match = _EXAMPLE.fullmatch(text.strip())
    if match is None:
        raise invalid_arg(
            f"--example is '{text}', expected NAME=SHAPE[:DATATYPE], e.g. x=1,3,224,224 or"
            " ids=1,16:INT64"
        )
    datatype = (match["datatype"] or "").upper().removeprefix("TYPE_")
    if datatype and datatype not in DATATYPES:
        raise invalid_arg(
            f"--example is '{text}', but '{match['datatype']}' is not a datatype. Expected one of"
            f" {', '.join(DATATYPES)}"
        )
    return Example(
        (match["name"] or "").strip(),
        [int(dim) for dim in re.split("[,x]", match["shape"])],
        datatype,
    )


def write_configs(repositories: Sequence[Path], examples: Sequence[Example]) -> Iterator[Written]:
    """Yields a result for each model without a config.pbtxt, in order. Raises NaiadError if a
    repository cannot be read."""
    for repository in repositories:
        for directory in scan_repository(repository):
            path = directory.path / CONFIG_FILE
            if not path.exists() and directory.versions:
                try:
                    config = read_from_model(directory.path, list(examples))
                except NaiadError as error:
                    yield Written(path, error.message)
                    continue
                if config is not None:
                    path.write_text(render_config(config))
                    yield Written(path)
