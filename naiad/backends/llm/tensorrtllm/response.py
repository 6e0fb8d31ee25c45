"""Responses of a tensorrt_llm model: token ids by sequence, padded with the end id, and the other
outputs that the request asks for.

An output that a request names but that is not computed is sent empty or zero, because an ensemble
waits for every tensor that it maps.
"""

from __future__ import annotations

from naiad.backends.llm.pending_response import Piece, Progress
from naiad.backends.llm.tensors import number_tensor
from naiad.core.tensor import Tensor
from naiad.llm.generation import FinishReason

_ZEROS = {
    "kv_cache_alloc_new_blocks": "INT32", "kv_cache_reused_blocks": "INT32",
    "kv_cache_alloc_total_blocks": "INT32",
    "arrival_time_ns": "INT64", "first_scheduled_time_ns": "INT64", "first_token_time_ns": "INT64",
    "last_token_time_ns": "INT64",
    "acceptance_rate": "FP32", "total_accepted_draft_tokens": "INT32",
    "total_draft_tokens": "INT32",
}  # fmt: skip


class TensorrtllmFormat:
    """`ResponseFormat` of naiad.backends.llm.pending_response."""

    def __init__(
        self,
        is_streamed: bool,
        requested: list[str],
        prefix: list[int],
        end_id: int | None,
        n: int,
        is_batched: bool,
        extras: set[str],
    ) -> None:
        self.is_streamed = is_streamed
        self._requested = requested
        self._prefix = prefix
        self._end_id = end_id
        self._lead = [1] if is_batched else []
        self._extras = extras
        self._cumulative = [0.0] * n

    def encode(self, progress: Progress) -> list[Tensor]:
        outputs = {tensor.name: tensor for tensor in self._computed(progress)}
        if not self._requested:
            return list(outputs.values())
        return [
            outputs[name] if name in outputs else self._blank(name, len(progress.pieces))
            for name in self._requested
        ]

    def _computed(self, progress: Progress) -> list[Tensor]:
        pieces, lead = progress.pieces, self._lead
        rows = [self._prefix + self._without_end(piece) for piece in pieces]
        width = max((len(row) for row in rows), default=0)
        pad = self._end_id if self._end_id is not None else 0
        padded = [token for row in rows for token in row + [pad] * (width - len(row))]
        outputs = [
            number_tensor("output_ids", "INT32", padded, [*lead, len(rows), width]),
            number_tensor(
                "sequence_length", "INT32", [len(row) for row in rows], [*lead, len(rows)]
            ),
            number_tensor(
                "sequence_index", "INT32", [piece.index for piece in pieces], [*lead, len(rows)]
            ),
            number_tensor("batch_index", "INT32", [0], [*lead, 1]),
        ]
        if "return_log_probs" in self._extras:
            outputs += self._log_probs(pieces)
        if "return_num_input_tokens" in self._extras:
            outputs.append(
                number_tensor("num_input_tokens", "INT32", [progress.num_prompt_tokens], [*lead, 1])
            )
        if "return_num_output_tokens" in self._extras:
            outputs.append(
                number_tensor(
                    "num_output_tokens", "INT32", [sum(progress.num_output_tokens)], [*lead, 1]
                )
            )
        return outputs

    def _without_end(self, piece: Piece) -> list[int]:
        """Drops the token that ended the sequence; the end of a stop word is kept."""
        is_ended = (
            piece.finish_reason is FinishReason.STOP
            and piece.token_ids
            and piece.token_ids[-1] == self._end_id
        )
        ends_itself = piece.finish_reason is FinishReason.STOP and piece.stop_reason is None
        return piece.token_ids[:-1] if is_ended or ends_itself else piece.token_ids

    def _log_probs(self, pieces: list[Piece]) -> list[Tensor]:
        rows = [
            [entry.logprob for entry in piece.logprobs][: len(self._without_end(piece))]
            for piece in pieces
        ]
        for piece, row in zip(pieces, rows, strict=True):
            self._cumulative[piece.index] += sum(row)
        width = max((len(row) for row in rows), default=0)
        padded = [value for row in rows for value in row + [0.0] * (width - len(row))]
        return [
            number_tensor(
                "cum_log_probs",
                "FP32",
                [self._cumulative[piece.index] for piece in pieces],
                [*self._lead, len(rows)],
            ),
            number_tensor("output_log_probs", "FP32", padded, [*self._lead, len(rows), width]),
        ]

    def _blank(self, name: str, num_rows: int) -> Tensor:
        lead = self._lead
        match name:
            case "cum_log_probs":
                return number_tensor(name, "FP32", [0.0] * num_rows, [*lead, num_rows])
            case "output_log_probs" | "context_logits":
                return number_tensor(name, "FP32", [0.0] * num_rows, [*lead, num_rows, 1])
            case "generation_logits":
                return number_tensor(name, "FP32", [0.0] * num_rows, [*lead, num_rows, 1, 1])
            case "context_phase_params":
                return Tensor(name, "UINT8", [*lead, 0], b"")
            case _:
                return number_tensor(name, _ZEROS.get(name, "INT32"), [0], [*lead, 1])
