"""How far two models' next-token distributions are apart, on text that was not calibrated on."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor


class Quality(msgspec.Struct, frozen=True):
    perplexity_before: float
    perplexity_after: float
    divergence: float
    """Kullback-Leibler, mean over all places, in nats."""
    agreement: float
    """Share of places where both think the same token the likeliest."""
    num_tokens: int


LogProbs = Callable[[int], Tensor]
"""Returns the log probabilities of a stretch of text as float32 [length, vocabulary]."""


def compare(before: LogProbs, after: LogProbs, tokens: Tensor) -> Quality:
    """One stretch [length] of `tokens` at a time: all of a large vocabulary together would take
    gigabytes."""
    totals = torch.zeros(4, dtype=torch.float64)
    for index, stretch in enumerate(tokens):
        one, other = before(index), after(index)
        wanted = stretch[1:, None]
        losses = [-log_probs[:-1].gather(1, wanted).mean() for log_probs in (one, other)]
        divergence = (one.exp() * (one - other)).sum(-1).mean()
        agreement = (one.argmax(-1) == other.argmax(-1)).double().mean()
        totals += torch.stack(
            [losses[0].double(), losses[1].double(), divergence.double(), agreement]
        )
    first, second, divergence_mean, agreement_mean = (totals / tokens.shape[0]).tolist()
    return Quality(
        math.exp(first), math.exp(second), divergence_mean, agreement_mean, tokens.numel()
    )
