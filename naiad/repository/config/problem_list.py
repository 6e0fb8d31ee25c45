"""Where validation rules put what they find: adds the file and the line to each problem.

In: a rule's words and the path of the field concerned. Out: `problems`, in the order in which
    Triton checks.
"""

from __future__ import annotations

from naiad.repository.config.problem import Problem
from naiad.repository.config.source_map import SourceMap


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
