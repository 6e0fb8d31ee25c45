"""Pages in a browser: which of their requests are refused."""

from __future__ import annotations

import pytest

from naiad.frontends.http.browser_check import BrowserCheck
from naiad.keys.api_class import HEALTH, INFERENCE, LOGGING, METADATA, MODEL_REPOSITORY
from naiad.transport.http1.head import parse_head
from naiad.transport.http1.limits import Http1Limits

LOCAL = BrowserCheck(frozenset(("api.example.com",)))
ANY_HOST = BrowserCheck(None)
JSON = "Content-Type: application/json"
CURL = "Content-Type: application/x-www-form-urlencoded"


def is_refused(check: BrowserCheck, api: str, method: str, *fields: str) -> bool:
    lines = [f"{method} /x HTTP/1.1", *fields, "Content-Length: 1", "", ""]
    head = parse_head("\r\n".join(lines).encode(), Http1Limits())
    return check.refusal(head, api) is not None


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8000", "LOCALHOST", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7:8000",
        "app.localhost", "api.example.com", "localhost.:8000", "naiad:8000",
    ],
)  # fmt: skip
def test_own_names_and_addresses_are_accepted(host: str) -> None:
    assert not is_refused(LOCAL, METADATA, "GET", f"Host: {host}")


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:8000", "127.0.0.1.evil.com", "localhost.evil.com", "example.com"]
)
def test_a_name_of_somebody_else_is_refused(host: str) -> None:
    """The name of a page that was made to point here."""
    assert is_refused(LOCAL, METADATA, "GET", f"Host: {host}")
    assert is_refused(LOCAL, INFERENCE, "POST", f"Host: {host}", f"Origin: http://{host}", JSON)
    assert not is_refused(LOCAL, HEALTH, "GET", f"Host: {host}")
    assert not is_refused(ANY_HOST, METADATA, "GET", f"Host: {host}")


def test_a_star_allows_every_name() -> None:
    assert not is_refused(BrowserCheck(frozenset("*")), METADATA, "GET", "Host: evil.com")


@pytest.mark.parametrize("api", [INFERENCE, LOGGING, MODEL_REPOSITORY])
@pytest.mark.parametrize(
    "origin",
    [
        "Origin: http://evil.com", "Origin: null", "Origin: http://localhost:3000",
        "Origin: http://localhost:80000", "Origin: localhost:8000", "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)  # fmt: skip
def test_pages_of_other_origins_change_nothing(api: str, origin: str) -> None:
    for check in (LOCAL, ANY_HOST):
        assert is_refused(check, api, "POST", "Host: localhost:8000", origin, JSON)
    assert not is_refused(LOCAL, api, "GET", "Host: localhost:8000", origin)


def test_own_pages_must_send_json() -> None:
    own = ("Host: localhost:8000", "Origin: http://localhost:8000", "Sec-Fetch-Site: same-origin")
    assert not is_refused(LOCAL, LOGGING, "POST", *own, JSON)
    assert not is_refused(LOCAL, LOGGING, "POST", *own, f"{JSON}; charset=utf-8")
    assert is_refused(LOCAL, LOGGING, "POST", *own, "Content-Type: text/plain")
    assert is_refused(LOCAL, LOGGING, "POST", *own, CURL)
    assert is_refused(LOCAL, LOGGING, "POST", *own)


def test_allowed_origins() -> None:
    check = BrowserCheck(None, frozenset(("https://app.example.com",)))
    assert not is_refused(
        check, INFERENCE, "POST", "Host: h", "Origin: https://app.example.com", JSON
    )
    assert is_refused(check, INFERENCE, "POST", "Host: h", "Origin: http://app.example.com", JSON)


def test_clients_that_are_not_browsers_send_what_they_like() -> None:
    for api in (INFERENCE, LOGGING, MODEL_REPOSITORY):
        assert not is_refused(LOCAL, api, "POST", "Host: localhost:8000", CURL)
        assert not is_refused(LOCAL, api, "POST", "Host: localhost:8000")
    assert not is_refused(LOCAL, INFERENCE, "POST", "Host: localhost", "Content-Type: text/plain")


def test_control_requests_are_not_plain_text() -> None:
    for kind in ("text/plain", "text/plain;charset=utf-8", "multipart/form-data; boundary=x"):
        assert is_refused(LOCAL, LOGGING, "POST", "Host: localhost", f"Content-Type: {kind}")
