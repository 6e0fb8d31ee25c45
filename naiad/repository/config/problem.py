"""What is wrong with a model's configuration, said so that a person can act on it.

Made by pbtxt (text), validate (rules) and check (files); read by `naiad check` and by whoever fails
a load.
Rule: `message` is Triton's wording where Triton has one, because clients and scripts match on it;
      everything a person needs beyond that (where, found, expected, fix) stands beside it and never
      inside it.
"""

from __future__ import annotations

import msgspec

from naiad.errors import Code, NaiadError
from naiad.repository.config.source_map import Position, SourceMap

MAX_PROBLEMS = 100
"""So many are told of one configuration; what comes after is either the same again or no
configuration at all."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    """Stable, for scripts: 'unknown-field', 'dims-missing'."""
    message: str
    brief: str = ""
    """The same for a reader who already sees the file and the line; empty when `message` is short
    enough."""
    path: str = ""
    """The field it is about: `input[1].dims[0]`."""
    file: str = ""
    """As the user knows it, relative to the repository: `resnet/config.pbtxt`. Empty when no file
    is concerned."""
    position: Position | None = None
    source: str = ""
    """The line of the file."""
    found: str = ""
    expected: str = ""
    fix: str = ""

    @property
    def where(self) -> str:
        if not self.position:
            return self.file
        return f"{self.file or 'config'}:{self.position.line}"

    def sentence(self) -> str:
        """One line: Triton's words first, then the place and the fix."""
        place = (
            f"line {self.position.line}"
            if self.position and self.file in self.message
            else self.where
        )
        notes = "; ".join(note for note in (place, self.fix) if note)
        return f"{self.message} ({notes})" if notes else self.message


class InvalidConfigError(NaiadError):
    """A configuration that cannot be loaded; `problems` is never empty."""

    def __init__(self, problems: list[Problem]) -> None:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(Code.INVALID_ARG, problems[0].sentence() + more)
        self.problems = problems


class ProblemList:
    def __init__(self, lines: SourceMap) -> None:
        self.problems: list[Problem] = []
        self._lines = lines

    def is_written(self, path: str) -> bool:
        return path in self._lines

    def add(
        self, code: str, message: str, path: str, *, found: str, expected: str, fix: str = ""
    ) -> None:
        position = self._lines.position(path)
        self.problems.append(
            Problem(
                code=code,
                message=message,
                path=path,
                file=self._lines.file_name,
                position=position,
                source=self._lines.line(position),
                found=found,
                expected=expected,
                fix=fix,
            )
        )
