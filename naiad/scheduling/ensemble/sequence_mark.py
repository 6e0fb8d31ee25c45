"""Which sequence a tensor between two steps of an ensemble belongs to, when the step that made it
says so.

Triton's rule: response parameters `sequence_id`, `sequence_start` and `sequence_end` of a step hold
for the steps that read its outputs.
"""

from __future__ import annotations

import msgspec

from naiad.core.request import InferRequest, ParameterValue


class SequenceMark(msgspec.Struct, frozen=True):
    id: int | str
    is_start: bool
    is_end: bool

    @classmethod
    def of(
        cls, parameters: dict[str, ParameterValue], request: InferRequest
    ) -> SequenceMark | None:
        """None when the parameters do not mention a sequence. What they leave out is as in the
        ensemble's own request."""
        if parameters.keys().isdisjoint(("sequence_id", "sequence_start", "sequence_end")):
            return None
        id = parameters.get("sequence_id", request.sequence_id)
        return cls(
            id if isinstance(id, str) else int(id),
            bool(parameters.get("sequence_start", request.sequence_start)),
            bool(parameters.get("sequence_end", request.sequence_end)),
        )

    def apply_to(self, request: InferRequest) -> None:
        request.sequence_id, request.sequence_start, request.sequence_end = (
            self.id,
            self.is_start,
            self.is_end,
        )
