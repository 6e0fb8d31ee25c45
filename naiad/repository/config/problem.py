"""Problems of a model's configuration, with everything a user needs to fix them.

In:  a broken rule and the path of the field, from pbtxt (text), validate (rules) and check (files).
     Out: `naiad check` prints the problems, and a failed load reports the first of them.
Rule: `message` is Triton's own text if Triton has one, because clients and scripts match on it.
      What a user needs beyond that is in other fields: where, found, expected, fix.
"""

from __future__ import annotations

import msgspec

from naiad.errors import Code, NaiadError
from naiad.repository.config.source_map import Position, SourceMap

MAX_PROBLEMS = 100
"""The number of problems that are reported for one configuration. More of them would be
repetitions, or the file is not a configuration at all."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    """A stable name for scripts, such as 'unknown-field' or 'dims-missing'."""
    message: str
    brief: str = ""
    """A shorter message, for output that shows the file and the line anyway; empty if `message` is
    short enough."""
    path: str = ""
    """The field that is wrong: `input[1].dims[0]`."""
    file: str = ""
    """The file relative to the repository: `resnet/config.pbtxt`. Empty if the problem is not in a
    file."""
    position: Position | None = None
    source: str = ""
    """The text of the line."""
    found: str = ""
    expected: str = ""
    fix: str = ""
    protobuf: str = ""
    """What protobuf's own parser says, for the log; empty if it accepts the text."""

    @property
    def where(self) -> str:
        if not self.position:
            return self.file
        return f"{self.file or 'config'}:{self.position.line}"

    def sentence(self) -> str:
        """The problem in one line: Triton's text first, then the place and the fix."""
        place = (
            f"line {self.position.line}"
            if self.position and self.file in self.message
            else self.where
        )
        notes = "; ".join(note for note in (place, self.fix) if note)
        return f"{self.message} ({notes})" if notes else self.message


class InvalidConfigError(NaiadError):
    """The configuration cannot be loaded. `problems` is never empty."""

    def __init__(self, problems: list[Problem]) -> None:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(Code.INVALID_ARG, problems[0].sentence() + more)
        self.problems = problems


class ProblemList:
    """Collects the problems that rules find, and adds the file and the line to each."""

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
