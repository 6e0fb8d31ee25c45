"""A run with the summaries of its levels. `--json` writes it, `--compare FILE` reads it."""

from __future__ import annotations

import datetime
import shlex
import sys
from pathlib import Path

import msgspec

from naiad import __version__
from naiad.perf.load.level import Level, Mode
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.window import Summary
from naiad.perf.options import PerfOptions
from naiad.perf.prepare import server_address
from naiad.settings.option import OptionError
from naiad.tools.machine import machine_text

FORMAT = "naiad-perf/1"


class SavedLevel(msgspec.Struct, frozen=True):
    mode: str
    value: float
    label: str
    is_stable: bool
    explanation: str
    error: str
    summary: Summary | None


class SavedRun(msgspec.Struct, frozen=True):
    format: str
    label: str
    model: str
    url: str
    protocol: str
    percentile: int
    batch_size: int
    command: str
    machine: str
    time: str
    version: str
    levels: list[SavedLevel]

    @property
    def measured(self) -> list[tuple[SavedLevel, Summary]]:
        return [(level, level.summary) for level in self.levels if level.summary is not None]

    @property
    def latency_name(self) -> str:
        return "average" if self.percentile < 0 else f"p{self.percentile}"

    @property
    def is_llm(self) -> bool:
        return any(summary.tokens is not None for _, summary in self.measured)

    @property
    def mode(self) -> Mode:
        return Mode(self.levels[0].mode) if self.levels else Mode.CONCURRENCY


def save_run(options: PerfOptions, levels: list[LevelResult], label: str = "") -> SavedRun:
    return SavedRun(
        FORMAT,
        label or options.label or options.model,
        options.model,
        server_address(options).url,
        _protocol(options),
        options.percentile,
        options.batch_size,
        command_text(),
        machine_text(),
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        __version__,
        [_saved(result) for result in levels],
    )


def _saved(result: LevelResult) -> SavedLevel:
    level: Level = result.level
    verdict = result.verdict
    return SavedLevel(
        level.mode.value,
        level.value,
        level.label,
        verdict.is_stable,
        verdict.explanation,
        result.error,
        result.summary,
    )


def _protocol(options: PerfOptions) -> str:
    if options.service_kind == "openai":
        return "OpenAI" + (" stream" if options.streaming else "")
    return ("gRPC" if options.is_grpc else "HTTP") + (" stream" if options.streaming else "")


def command_text() -> str:
    return shlex.join(["naiad", *sys.argv[1:]])


def encode_run(run: SavedRun) -> str:
    return msgspec.json.format(msgspec.json.encode(run), indent=1).decode() + "\n"


def read_run(path: Path) -> SavedRun:
    """Reads a file written by --json. Raises OptionError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedRun)
    except OSError as error:
        raise OptionError(f"--compare {path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise OptionError(f"--compare {path} was not written by --json: {error}") from None
