"""Metrics of API keys, by the id of the key.

In:  KeyReading, made at scrape time. Out: blocks of the page.
Rule: at most MAX_KEYS ids are shown; the rest are added up under the id "other".
"""

from __future__ import annotations

import msgspec

from naiad.metrics.exposition import COUNTER, GAUGE, Block, label_text

MAX_KEYS = 500
OTHER = "other"


class KeyCounts(msgspec.Struct, frozen=True):
    key_id: str
    """Empty for requests without a valid key."""
    num_requests: int = 0
    refusals: dict[str, int] = {}
    """Keyed by reason."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


class KeyReading(msgspec.Struct, frozen=True):
    keys: list[KeyCounts] = []
    is_file_good: bool | None = None
    """None if there is no key file."""
    num_file_failures: int = 0
    num_audit_dropped: int | None = None
    """None if there is no audit log."""
    is_key_set_good: bool | None = None
    """None if no identity provider is configured."""
    num_key_set_failures: int = 0


def key_blocks(reading: KeyReading | None) -> list[Block]:
    """`reading` is None where nobody needs an API key. The blocks are then empty."""
    requests = Block("naiad_api_key_requests_total", COUNTER, "Number of requests let in, by key")
    refused = Block(
        "naiad_api_key_refused_total", COUNTER, "Number of requests refused, by key and reason"
    )
    tokens = Block("naiad_api_key_tokens_total", COUNTER, "Number of tokens used, by key and kind")
    good = Block("naiad_api_key_file_valid", GAUGE, "1 if the key file could be read, else 0")
    failures = Block(
        "naiad_api_key_file_errors_total", COUNTER, "Number of times the key file was broken"
    )
    dropped = Block(
        "naiad_audit_lines_dropped_total",
        COUNTER,
        "Number of lines of the audit log that were lost",
    )
    set_good = Block(
        "naiad_jwt_key_set_valid",
        GAUGE,
        "1 if the keys of the identity provider could be read, else 0",
    )
    set_failures = Block(
        "naiad_jwt_key_set_errors_total",
        COUNTER,
        "Number of times the keys of the identity provider could not be read",
    )
    for counts in [] if reading is None else bounded(reading.keys):
        key = {"key": counts.key_id}
        if counts.key_id:
            requests.add(label_text(key), counts.num_requests)
            tokens.add(label_text({**key, "kind": "prompt"}), counts.num_prompt_tokens)
            tokens.add(label_text({**key, "kind": "output"}), counts.num_output_tokens)
        for reason, number in sorted(counts.refusals.items()):
            refused.add(label_text({**key, "reason": reason}), number)
    if reading is not None and reading.is_file_good is not None:
        good.add("", int(reading.is_file_good))
        failures.add("", reading.num_file_failures)
    if reading is not None and reading.num_audit_dropped is not None:
        dropped.add("", reading.num_audit_dropped)
    if reading is not None and reading.is_key_set_good is not None:
        set_good.add("", int(reading.is_key_set_good))
        set_failures.add("", reading.num_key_set_failures)
    return [requests, refused, tokens, good, failures, dropped, set_good, set_failures]


def bounded(keys: list[KeyCounts]) -> list[KeyCounts]:
    """The keys with most requests, and the sum of the others."""
    if len(keys) <= MAX_KEYS:
        return keys
    ordered = sorted(keys, key=lambda counts: (counts.key_id != "", -counts.num_requests))
    shown, others = ordered[: MAX_KEYS - 1], ordered[MAX_KEYS - 1 :]
    refusals: dict[str, int] = {}
    for counts in others:
        for reason, number in counts.refusals.items():
            refusals[reason] = refusals.get(reason, 0) + number
    other = KeyCounts(
        OTHER,
        sum(counts.num_requests for counts in others),
        refusals,
        sum(counts.num_prompt_tokens for counts in others),
        sum(counts.num_output_tokens for counts in others),
    )
    return [*shown, other]
