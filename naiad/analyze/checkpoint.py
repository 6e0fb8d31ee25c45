"""Stores measurements as lines of JSON, so that a run that was killed can resume.

Rule: a line is written and synced before the next measurement starts. A half-written last line is
      dropped.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from naiad.analyze.measurement import Measurement
from naiad.analyze.metric import Constraints, Objectives
from naiad.analyze.precision import PrecisionOutcome
from naiad.settings.option import OptionError

FORMAT = "naiad-analyze/1"
FILE = "measurements.jsonl"


class CheckpointError(Exception):
    """A measurement cannot be stored, e.g. because the disk is full. The run must stop."""


class Goal(msgspec.Struct, frozen=True):
    objectives: dict[str, Objectives] = {}
    """Objectives by model."""
    constraints: dict[str, Constraints] = {}
    weights: dict[str, float] = {}


class CheckpointJob(msgspec.Struct, frozen=True):
    """One search: a model, or several that are measured together."""

    models: list[str]
    fingerprint: str
    """Hash of the models' configurations and the measurement settings. Measurements of a job with
    another fingerprint cannot be compared."""
    search_mode: str
    goal: Goal
    command: str
    machine: str
    time: str
    version: str
    space_size: int
    repository: str = ""
    precisions: list[PrecisionOutcome] = []
    """What quantization changes, for models whose quantization is searched."""


class CheckpointEntry(msgspec.Struct, tag_field="kind"):
    pass


class JobEntry(CheckpointEntry, tag="job"):
    format: str
    job: CheckpointJob


class MeasurementEntry(CheckpointEntry, tag="measurement"):
    models: list[str]
    measurement: Measurement


class History(msgspec.Struct):
    """The content of a checkpoint directory."""

    jobs: dict[str, CheckpointJob]
    """Jobs by key; see job_key."""
    measurements: dict[str, dict[str, Measurement]]
    """Measurements by the key of the job and the key of the measurement."""

    def begin(self, job: CheckpointJob) -> dict[str, Measurement]:
        """Starts or resumes a job and returns the measurements that it already has.

        A job whose measurements all failed starts anew: the user has changed the input data or the
        model since.
        """
        key = job_key(job.models)
        self.jobs[key] = job
        known = self.measurements.setdefault(key, {})
        if all(measurement.error for measurement in known.values()):
            known.clear()
        return known


def job_key(models: list[str]) -> str:
    return " + ".join(models)


def fingerprint(parts: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def read_history(directory: Path) -> History:
    """Reads the checkpoint of a directory. Raises OptionError if the file is not a checkpoint."""
    history = History({}, {})
    path = directory / FILE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return history
    decoder = msgspec.json.Decoder(JobEntry | MeasurementEntry)
    for number, line in enumerate(lines, 1):
        try:
            entry = decoder.decode(line)
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise OptionError(
                f"{path}, line {number} is not a measurement of naiad analyze: {error}"
            ) from None
        if isinstance(entry, JobEntry):
            history.begin(entry.job)
        else:
            history.measurements.setdefault(job_key(entry.models), {})[entry.measurement.key] = (
                entry.measurement
            )
    return history


class Checkpoint:
    def __init__(self, directory: Path) -> None:
        """Opens the checkpoint of a directory. Raises OptionError if it cannot be used."""
        self.history = read_history(directory)
        self._path = directory / FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._drop_half_line()
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise OptionError(
                f"--checkpoint-directory {directory} cannot be written: {error.strerror}"
            ) from None

    def _drop_half_line(self) -> None:
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        if data and not data.endswith(b"\n"):
            self._path.write_bytes(data[: data.rfind(b"\n") + 1])

    def begin(self, job: CheckpointJob) -> dict[str, Measurement]:
        """Starts a job and returns the measurements that it already has.

        Raises OptionError if those measurements were made with other configurations or settings.
        """
        key = job_key(job.models)
        earlier = self.history.jobs.get(key)
        has_figures = any(not one.error for one in self.history.measurements.get(key, {}).values())
        if earlier is not None and earlier.fingerprint != job.fingerprint and has_figures:
            raise OptionError(
                f"the checkpoint {self._path} was made with another configuration of {key} or with"
                " other measurement settings. Remove it, or choose another --checkpoint-directory."
            )
        known = self.history.begin(job)
        self._write(JobEntry(FORMAT, job))
        return known

    def add(self, job: CheckpointJob, measurement: Measurement) -> None:
        self.history.measurements[job_key(job.models)][measurement.key] = measurement
        self._write(MeasurementEntry(job.models, measurement))

    def _write(self, entry: JobEntry | MeasurementEntry) -> None:
        """Appends a line and syncs the file. Raises CheckpointError."""
        line = msgspec.json.encode(entry) + b"\n"
        try:
            # On a nearly full disk a write may be partial; the next write then raises the reason.
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self._path} cannot be written: {error.strerror}"
            ) from None

    def close(self) -> None:
        self._file.close()
