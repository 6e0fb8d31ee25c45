"""Stored keys: what is accepted, and what the messages about the rest name."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from naiad.errors import NaiadError
from naiad.keys.key import (
    KeyDocument,
    decode_document,
    encode_document,
    parse_duration,
    shown_key,
)
from naiad.keys.key_change import NewKey, create, update

KEY: dict[str, Any] = {
    "id": "ab12cd34",
    "name": "one",
    "hash": "0" * 64,
    "created_at": "2030-01-01T00:00:00Z",
}


def document(*keys: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"version": 1, "keys": list(keys), **fields}).encode()


def message_for(data: bytes) -> str:
    with pytest.raises(NaiadError) as caught:
        decode_document(data)
    return caught.value.message


def test_what_is_written_can_be_read() -> None:
    full = {
        **KEY,
        "expires_at": "2031-01-01T00:00:00Z",
        "models": ["llama*"],
        "scopes": ["inference"],
        "rpm_limit": 5,
        "metadata": {"team": "red"},
        "previous": {"hash": "1" * 64, "expires_at": "2030-01-02T00:00:00Z"},
    }
    read = decode_document(document(full))
    assert decode_document(encode_document(read)) == read


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "the key file is not JSON"),
        (b"[]", "Expected `object`"),
        (b"{", "the key file is not JSON"),
        (document(version=7), "version 7"),
        (document({**KEY, "rpm": 5}), "unknown field `rpm`"),
        (document({**KEY, "rpm_limit": "x"}), "$.keys[0].rpm_limit"),
        (document({**KEY, "rpm_limit": -1}), "keys[0].rpm_limit: -1 is out of range"),
        (document({**KEY, "tpm_limit": 0}), "keys[0].tpm_limit: 0 is out of range"),
        (document({**KEY, "scopes": ["inferences"]}), "there is no scope 'inferences'"),
        (document({**KEY, "scopes": []}), "keys[0].scopes: a key needs at least one scope"),
        (document({**KEY, "models": [""]}), "keys[0].models: '' is not a pattern"),
        (document({**KEY, "models": []}), "'*' stands for all models"),
        (document({**KEY, "id": "../../x"}), "keys[0].id"),
        (document({**KEY, "hash": "x"}), "keys[0].hash: expected the SHA-256"),
        (document({**KEY, "name": "a\nb"}), "keys[0].name"),
        (document({**KEY, "priority": 101}), "keys[0].priority"),
        (document({**KEY, "expires_at": "2030-01-01T00:00:00"}), "the time needs a zone"),
        (document(KEY, {**KEY, "name": "two"}), "two keys have the id 'ab12cd34'"),
    ],
)
def test_a_broken_file_is_refused_with_the_field(data: bytes, part: str) -> None:
    assert part in message_for(data)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("24h", 86400), ("30d", 2592000), ("1mo", 2592000)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text, "--expires") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0", "0d", "-1d", "soon", "1.5h", "999999999y", "1 d x"])
def test_bad_durations_name_the_field(text: str) -> None:
    with pytest.raises(NaiadError, match=r"^--expires: "):
        parse_duration(text, "--expires")


def test_no_hash_is_shown() -> None:
    (key,) = decode_document(document(KEY)).keys
    shown = shown_key(key, datetime(2030, 1, 1, tzinfo=UTC))
    assert "0" * 64 not in json.dumps(shown)
    assert shown["state"] == "active"


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"metadata": {"note": "x" * 5000}}, "metadata: 5011 bytes as JSON, expected at most 4096"),
        ({"models": ("[a",)}, "models: '[a' has a '[' without its ']'"),
        ({"models": ("a[!]b", "c")}, "models: 'a[!]b' has a '[' without its ']'"),
        ({"models": ("x" * 250,) * 70}, "models: 17711 bytes as JSON"),
        ({"client_subjects": ("CN=" + "x" * 1900,) * 9}, "client_subjects: 17155 bytes"),
    ],
)
def test_new_values_are_bounded(fields: dict[str, Any], part: str) -> None:
    """A file that has such values already stays readable, and its keys can be changed."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(NaiadError) as created:
        create(KeyDocument(), NewKey(name="a", **fields), now)
    assert part in created.value.message
    issued = create(KeyDocument(), NewKey(name="a"), now)
    with pytest.raises(NaiadError) as updated:
        update(issued.document, issued.key, fields)
    assert part in updated.value.message
    old = msgspec.structs.replace(issued.key, **fields)
    assert update(issued.document, old, {"rpm_limit": 5}).keys[0].rpm_limit == 5


@pytest.mark.parametrize("pattern", ["[ab]*", "[!a]", "[]x]", "[[]a", "a]"])
def test_sets_of_characters_are_patterns(pattern: str) -> None:
    create(KeyDocument(), NewKey(name="a", models=(pattern,)), datetime(2030, 1, 1, tzinfo=UTC))
