"""What the deploy API shows: repositories, what was found in a model, and what will be written."""

from __future__ import annotations

import msgspec

from naiad.repository.check.finding import Severity
from naiad.repository.deploy.memory_estimate import Estimate
from naiad.repository.deploy.view import ConfigView


class Place(msgspec.Struct, frozen=True):
    """A repository of the server, and whether models can be deployed to it."""

    location: str
    is_writable: bool
    is_temporary: bool = False
    """It is gone when the server stops."""


class ProcessOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What a form may offer for the processes of a model: what this server can honour."""

    num_cores: int = 1
    memory_bytes: int = 0
    pythons: list[str] = []
    """Versions of Python that a model may ask for; the server's own is among them."""
    can_install: bool = True
    """A requirements.txt has an effect."""
    can_set_variables: bool = True
    """Models may have environment variables of their own."""


class FoundFile(msgspec.Struct, frozen=True):
    path: str
    target: str
    size: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a model tell."""

    backend: str
    name: str = ""
    """A name that a new model may have; may be empty."""
    files: list[FoundFile] = []
    config: ConfigView | None = None
    needs_example: bool = False
    """The file does not declare shapes: with an example input, the model tells them."""
    note: str = ""


class PreviewProblem(msgspec.Struct, frozen=True):
    severity: str
    message: str
    path: str
    """The field of the config: `input[1].dims[0]`; empty if it belongs to none."""
    file: str
    line: int
    found: str
    expected: str
    fix: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    is_new: bool
    text: str
    old_text: str | None
    diff: str
    """Empty for a new config."""
    config: ConfigView | None
    """What the text says; None if it cannot be read."""
    problems: list[PreviewProblem]
    command: str
    memory: Estimate | None
    version: int

    @property
    def has_errors(self) -> bool:
        return any(problem.severity == Severity.ERROR.value for problem in self.problems)


class Existing(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the repository, as its form begins."""

    name: str
    repository: str
    is_writable: bool
    text: str
    base: str
    versions: list[int]
    config: ConfigView | None
    requirements: str
    problem: str = ""
    """Why the config cannot be read."""
