"""What a request tells of the proxies that have passed it on, and whom it is believed of."""

from __future__ import annotations

import ipaddress

import pytest

from naiad.keys.forwarded import TrustedProxies, forwarding_field, read_trail

TRUSTED = TrustedProxies(
    tuple(map(ipaddress.ip_network, ("127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48")))
)


def client(peer: str, **fields: str) -> str:
    values = {name.replace("_", "-"): value.encode() for name, value in fields.items()}
    return TRUSTED.client(peer, read_trail(values.get))


@pytest.mark.parametrize(
    ("peer", "fields", "expected"),
    [
        ("127.0.0.1", {}, "127.0.0.1"),
        ("127.0.0.1", {"x_forwarded_for": "203.0.113.9"}, "203.0.113.9"),
        # Anybody can send the field: it is believed from the right, for as long as it is trusted.
        ("198.51.100.7", {"x_forwarded_for": "203.0.113.9"}, "198.51.100.7"),
        ("127.0.0.1", {"x_forwarded_for": "1.2.3.4, 203.0.113.9"}, "203.0.113.9"),
        ("127.0.0.1", {"x_forwarded_for": "203.0.113.9, 10.1.1.1"}, "203.0.113.9"),
        ("127.0.0.1", {"x_forwarded_for": "203.0.113.9, nonsense, 10.1.1.1"}, "10.1.1.1"),
        ("127.0.0.1", {"x_forwarded_for": "203.0.113.9:8080"}, "203.0.113.9"),
        ("::ffff:10.0.0.1", {"x_forwarded_for": "203.0.113.9"}, "203.0.113.9"),
        ("127.0.0.1", {"forwarded": "for=203.0.113.9;proto=https;by=10.0.0.1"}, "203.0.113.9"),
        ("127.0.0.1", {"forwarded": 'for=1.2.3.4, For="[2001:db8::9]:80"'}, "2001:db8::9"),
        ("127.0.0.1", {"forwarded": "for=unknown"}, "127.0.0.1"),
        (
            "127.0.0.1",
            {"forwarded": "for=203.0.113.9", "x_forwarded_for": "1.2.3.4"},
            "203.0.113.9",
        ),
        ("2001:db8:1::5", {"x_forwarded_for": "2001:db8::9"}, "2001:db8::9"),
        ("127.0.0.1", {"x_forwarded_for": ", ".join(["10.0.0.1"] * 500)}, "10.0.0.1"),
        ("", {"x_forwarded_for": "203.0.113.9"}, ""),
    ],
)
def test_the_client_is_the_first_that_is_not_trusted(
    peer: str, fields: dict[str, str], expected: str
) -> None:
    assert client(peer, **fields) == expected


def test_nobody_is_trusted_by_default() -> None:
    trail = read_trail({"x-forwarded-for": b"203.0.113.9"}.get)
    assert TrustedProxies().client("127.0.0.1", trail) == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("abc-1", "abc-1"), ("", ""), ("a b", ""), ("a\x01", ""), ("x" * 129, ""), ("\xe9", "")],
)
def test_an_id_that_could_break_a_line_is_not_taken_over(text: str, expected: str) -> None:
    assert read_trail({"x-request-id": text.encode("latin-1")}.get).request_id == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["host", "accept"], ""),
        ([b"host", b"x-forwarded-proto"], "x-forwarded-proto"),
        (["via"], "via"),
        (["forwarded"], "forwarded"),
        (["x-real-ip"], "x-real-ip"),
        (["x-forward"], ""),
    ],
)
def test_a_proxy_shows_itself(names: list[str | bytes], expected: str) -> None:
    assert forwarding_field(names) == expected
