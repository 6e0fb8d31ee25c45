"""Language models: time to first token, inter-token latency, token rates, goodput.

In:  Records whose responses were digested to TokenChunk. Out: TokenSummary.
Rule: one place defines these figures. Inter-token latency is (end - first token) / (tokens - 1) of
      a request, as genai-perf has it; the gaps between chunks are kept beside it, because a long
      stall hides in an average.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from naiad.perf.measure.recorder import Detail, Records

GOODPUT_METRICS = (
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "output_token_throughput_per_request",
)


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """What is kept of one response."""

    num_tokens: int
    """As far as the response itself says: 1 for a chunk with text, 0 for one without."""
    prompt_tokens: int = -1
    """Counted by the server, -1 when it does not say."""
    completion_tokens: int = -1
    text: str = ""
    """Only where a tokenizer counts afterwards."""
    raw: Any = b""
    """The response itself, only for an export."""


class Statistic(msgspec.Struct, frozen=True):
    average: float
    minimum: float
    maximum: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    deviation: float


class TokenSummary(msgspec.Struct, frozen=True):
    num_requests: int
    statistics: dict[str, Statistic]
    """By name; times in ms, lengths in tokens, rates in tokens per second."""
    output_tokens_per_s: float
    input_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float | None
    """Requests per second that kept all the limits of --goodput; None when there are none."""
    good_percent: float | None
    counted_by: str
    """usage, tokenizer or chunks: who counted the output tokens."""
    num_prompt_tokens_known: int


def statistic(values: list[float]) -> Statistic:
    array = np.array(values, float)
    p50, p75, p90, p95, p99 = (float(value) for value in np.percentile(array, [50, 75, 90, 95, 99]))
    return Statistic(
        float(array.mean()),
        float(array.min()),
        float(array.max()),
        p50,
        p75,
        p90,
        p95,
        p99,
        float(array.std()),
    )


class TokenCounting(msgspec.Struct, frozen=True):
    """What is known of tokens when the server does not count them itself."""

    item_tokens: list[int] = []
    """Of each prepared request's prompt; empty when unknown."""
    count: Callable[[str], int] | None = None
    """Tokens of a text, with the tokenizer that was given."""


class RequestTokens(msgspec.Struct, frozen=True):
    ttft_ms: float
    second_ms: float
    """From the first to the second chunk with text; -1 when there was only one."""
    latency_ms: float
    itl_ms: float
    """-1 for fewer than two tokens."""
    gaps_ms: list[float]
    num_output: int
    num_input: int
    """-1 when nobody counted them."""
    counted_by: str


def request_tokens(detail: Detail, end_ns: int, counting: TokenCounting) -> RequestTokens | None:
    """None for an answer without any text."""
    chunks: list[TokenChunk] = [
        chunk for chunk in detail.responses if isinstance(chunk, TokenChunk)
    ]
    times = [
        at_ns for at_ns, chunk in zip(detail.response_ns, chunks, strict=False) if chunk.num_tokens
    ]
    if not times:
        return None
    said = next(
        (chunk.completion_tokens for chunk in reversed(chunks) if chunk.completion_tokens >= 0), -1
    )
    prompt = next(
        (chunk.prompt_tokens for chunk in reversed(chunks) if chunk.prompt_tokens >= 0), -1
    )
    if prompt < 0 and counting.item_tokens:
        prompt = counting.item_tokens[detail.item]
    counted_by, num_output = "usage", said
    if said < 0 and counting.count is not None:
        counted_by, num_output = (
            "tokenizer",
            counting.count("".join(chunk.text for chunk in chunks)),
        )
    elif said < 0:
        counted_by, num_output = "chunks", sum(chunk.num_tokens for chunk in chunks)
    last_ns = times[-1]
    itl_ms = (
        (last_ns - times[0]) / 1e6 / (num_output - 1) if num_output > 1 and len(times) > 1 else -1.0
    )
    return RequestTokens(
        (times[0] - detail.start_ns) / 1e6,
        (times[1] - times[0]) / 1e6 if len(times) > 1 else -1.0,
        (end_ns - detail.start_ns) / 1e6,
        itl_ms,
        [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(times)],
        num_output,
        prompt,
        counted_by,
    )


def summarize_tokens(
    records: Records, duration_s: float, goodput: dict[str, float], counting: TokenCounting
) -> TokenSummary | None:
    pairs = zip(records.details, records.end.tolist(), strict=True)
    found = [
        tokens
        for detail, end_ns in pairs
        if (tokens := request_tokens(detail, end_ns, counting)) is not None
    ]
    if not found:
        return None
    return summarize_requests(found, duration_s, goodput)


def summarize_requests(
    found: list[RequestTokens], duration_s: float, goodput: dict[str, float]
) -> TokenSummary:
    columns: dict[str, list[float]] = {
        "time_to_first_token": [tokens.ttft_ms for tokens in found],
        "time_to_second_token": [tokens.second_ms for tokens in found if tokens.second_ms >= 0],
        "inter_token_latency": [tokens.itl_ms for tokens in found if tokens.itl_ms >= 0],
        "inter_chunk_latency": [gap for tokens in found for gap in tokens.gaps_ms],
        "request_latency": [tokens.latency_ms for tokens in found],
        "output_token_throughput_per_user": [
            1000 / tokens.itl_ms for tokens in found if tokens.itl_ms > 0
        ],
        "output_sequence_length": [float(tokens.num_output) for tokens in found],
        "input_sequence_length": [
            float(tokens.num_input) for tokens in found if tokens.num_input >= 0
        ],
    }
    good = sum(is_good(tokens, goodput) for tokens in found)
    num_known = sum(tokens.num_input >= 0 for tokens in found)
    return TokenSummary(
        len(found),
        {name: statistic(values) for name, values in columns.items() if values},
        sum(tokens.num_output for tokens in found) / duration_s,
        sum(max(0, tokens.num_input) for tokens in found) / duration_s,
        len(found) / duration_s,
        good / duration_s if goodput else None,
        100 * good / len(found) if goodput else None,
        "usage" if all(tokens.counted_by == "usage" for tokens in found) else found[0].counted_by,
        num_known,
    )


def is_good(tokens: RequestTokens, goodput: dict[str, float]) -> bool:
    """Times must be at most, rates at least what the limit says."""
    seconds = tokens.latency_ms / 1000
    values: dict[str, Any] = {
        "time_to_first_token": tokens.ttft_ms,
        "inter_token_latency": max(0.0, tokens.itl_ms),
        "request_latency": tokens.latency_ms,
        "output_token_throughput_per_request": tokens.num_output / seconds if seconds else 0.0,
    }
    for name, limit in goodput.items():
        is_rate = name.startswith("output_token_throughput")
        if (values[name] < limit) if is_rate else (values[name] > limit):
            return False
    return True
