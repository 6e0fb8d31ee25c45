"""Metrics of API keys: complete, and bounded."""

from __future__ import annotations

from naiad.metrics.exposition import page
from naiad.metrics.key_metrics import MAX_KEYS, KeyCounts, KeyReading, key_blocks


def test_shows_requests_refusals_and_tokens_by_key() -> None:
    reading = KeyReading(
        [
            KeyCounts("", refusals={"unauthenticated": 3}),
            KeyCounts("ab12cd34", 5, {"permission_denied": 1}, 70, 30),
        ],
        is_file_good=False,
        num_file_failures=2,
        num_audit_dropped=1,
        is_key_set_good=False,
        num_key_set_failures=2,
    )
    lines = page(key_blocks(reading)).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'naiad_api_key_requests_total{key="ab12cd34"} 5',
        'naiad_api_key_refused_total{key="",reason="unauthenticated"} 3',
        'naiad_api_key_refused_total{key="ab12cd34",reason="permission_denied"} 1',
        'naiad_api_key_tokens_total{key="ab12cd34",kind="prompt"} 70',
        'naiad_api_key_tokens_total{key="ab12cd34",kind="output"} 30',
        "naiad_api_key_file_errors_total 2",
        "naiad_audit_lines_dropped_total 1",
        "naiad_jwt_key_set_errors_total 2",
        "naiad_api_key_file_valid 0",
        "naiad_jwt_key_set_valid 0",
    ]


def test_shows_nothing_without_keys() -> None:
    assert page(key_blocks(None)) == b""


def test_the_number_of_ids_is_bounded_and_nothing_is_lost() -> None:
    keys = [KeyCounts(f"key{number:05}", number, {"x": 1}, 1, 1) for number in range(3000)]
    text = page(key_blocks(KeyReading(keys))).decode()
    requests = [
        line for line in text.splitlines() if line.startswith("naiad_api_key_requests_total{")
    ]
    assert len(requests) == MAX_KEYS
    assert 'key="key02999"' in text
    assert sum(int(line.split()[-1]) for line in requests) == sum(range(3000))
