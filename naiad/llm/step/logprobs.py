"""Computes log-probabilities of the model's own distribution for the rows whose request asks for
them. The work is queued behind the step, and the result is read with the step's tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from naiad.llm.generation import TokenLogprobs


@dataclass(slots=True)
class LogprobRows:
    """`rows` are indices into the step's sampled rows. With a GPU, the three tensors are in pinned
    host memory."""

    rows: list[int]
    counts: list[int]
    chosen: Tensor
    top_values: Tensor
    top_ids: Tensor

    def take(self, tokens: list[int]) -> dict[int, TokenLogprobs]:
        chosen, values, ids = self.chosen.tolist(), self.top_values.tolist(), self.top_ids.tolist()
        return {
            row: TokenLogprobs(
                tokens[row], chosen[i], list(zip(ids[i][:count], values[i][:count], strict=True))
            )
            for i, (row, count) in enumerate(zip(self.rows, self.counts, strict=True))
        }


def compute_logprobs(
    logits: Tensor, tokens: Tensor, rows: list[int], counts: list[int]
) -> LogprobRows:
    picked = torch.tensor(rows, device=logits.device)
    logprobs = torch.log_softmax(logits[picked].float(), dim=-1)
    chosen = logprobs.gather(1, tokens[picked].long()[:, None])[:, 0]
    values, ids = logprobs.topk(max([1, *counts]), dim=-1)
    return LogprobRows(rows, counts, _to_host(chosen), _to_host(values), _to_host(ids))


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
