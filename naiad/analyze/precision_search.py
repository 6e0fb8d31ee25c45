"""Finds out what quantization changes about a language model: how far its next-token distributions
move, and how much memory weights and KV cache take.

In:  a model's checkpoint and settings, and the values of `quantization` and `kv_cache_dtype` that
     the search may choose.
Out: one PrecisionOutcome per pair of values. A pair that the device cannot serve has a reason
     instead of figures, and the search leaves it out.
Rule: engines are opened in a process of their own (precision_probe.py), which ends before the
      server loads anything: two engines do not fit on one device.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from naiad.analyze.precision import KV_CACHE, PLAIN, QUANTIZATION, Precision, PrecisionOutcome
from naiad.analyze.space import Dimension, Space
from naiad.backends.llm.checkpoint import find_checkpoint
from naiad.backends.llm.options import read_options
from naiad.backends.served_config import ServedConfig
from naiad.errors import NaiadError, unsupported
from naiad.llm.engine_settings import EngineSettings
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config_json import config_to_dict

DIMENSIONS = tuple(f"parameters.{name}" for name in (QUANTIZATION, KV_CACHE))


class ProbeRequest(msgspec.Struct, frozen=True):
    """What precision_probe.py reads from its standard input."""

    model: str
    checkpoint: str
    settings: EngineSettings
    precisions: list[Precision]
    """The unquantized one first: the others are compared with it."""
    text_file: str = ""
    """Empty for the text that comes with the package."""


def searched_precisions(space: Space, model: str) -> list[Precision]:
    """Returns the pairs that the search may choose, the unquantized one first; an empty list if it
    varies neither value."""
    values = {
        dimension.name: [str(value) for value in dimension.values]
        for dimension in space.dimensions
        if dimension.model == model and dimension.name in DIMENSIONS
    }
    if not values:
        return []
    pairs = itertools.product(*(values.get(name, [PLAIN]) for name in DIMENSIONS))
    return list(dict.fromkeys([Precision(), *(Precision(*pair) for pair in pairs)]))


def without_unserved(
    dimensions: Sequence[Dimension], outcomes: Sequence[PrecisionOutcome]
) -> tuple[Dimension, ...]:
    """Leaves out values that the device serves in no pair. A dimension that has only the default
    left is no dimension."""
    kept: list[Dimension] = []
    for dimension in dimensions:
        if dimension.name in DIMENSIONS:
            own = [outcome for outcome in outcomes if outcome.model == dimension.model]
            failed = {_value(dimension, outcome) for outcome in own if outcome.reason}
            served = {_value(dimension, outcome) for outcome in own if not outcome.reason}
            values = tuple(value for value in dimension.values if str(value) not in failed - served)
            if not set(values) - {PLAIN}:
                continue
            dimension = msgspec.structs.replace(dimension, values=values)
        kept.append(dimension)
    return tuple(kept)


def _value(dimension: Dimension, outcome: PrecisionOutcome) -> str:
    precision = outcome.precision
    return precision.quantization if dimension.name == DIMENSIONS[0] else precision.kv_cache_dtype


async def measure_precisions(
    config: ModelConfig, folder: Path, precisions: list[Precision], text_file: str
) -> list[PrecisionOutcome]:
    """`folder` is the model's own. Nothing may be loaded on the device meanwhile."""
    if config.backend != "llm":
        reason = f'quantization is searched for backend "llm", and this is "{config.backend}"'
        return _all_failed(config.name, precisions, reason)
    try:
        request = _request(config, folder, precisions, text_file)
    except NaiadError as error:
        return _all_failed(config.name, precisions, str(error))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "naiad.analyze.precision_probe",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await process.communicate(msgspec.json.encode(request))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [line for line in out.splitlines() if line.startswith(b"{")]
    outcomes = [msgspec.json.decode(line, type=PrecisionOutcome) for line in lines]
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        reason = f"the process that measures it ended with code {process.returncode}: {last}"
        outcomes += _all_failed(config.name, precisions[len(outcomes) :], reason)
    return outcomes


def _request(
    config: ModelConfig, folder: Path, precisions: list[Precision], text_file: str
) -> ProbeRequest:
    served = msgspec.convert(config_to_dict(config), ServedConfig, strict=False)
    options = read_options(served)
    if options.settings.tensor_parallel_size > 1:
        raise unsupported(
            "precisions are compared on one rank, and tensor_parallel_size is "
            f"{options.settings.tensor_parallel_size}"
        )
    versions = sorted(
        (path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    checkpoint = find_checkpoint(options.checkpoint or ".", [*versions[-1:], folder])
    return ProbeRequest(config.name, str(checkpoint), options.settings, precisions, text_file)


def _all_failed(model: str, precisions: list[Precision], reason: str) -> list[PrecisionOutcome]:
    return [PrecisionOutcome(model, precision, reason=reason) for precision in precisions]
