"""Keeps pages in a browser from using a server that they can reach but that is not theirs.

A page may send requests to any address, this machine's included; the browser only keeps it from
reading the responses. Two checks stop it, and neither concerns other clients:
- `Host`: a page whose own name was made to point to this machine (DNS rebinding) sends that name.
- `Origin`: requests that change something must come from a page that this server has served. They
  must also be JSON or binary: a form or plain text can be sent without the browser asking first.
Rule: everything is decided from the head of a request.
"""

from __future__ import annotations

import ipaddress
import socket

from naiad.errors import Code, NaiadError
from naiad.keys.api_class import (
    HEALTH,
    INFERENCE,
    MODEL_READINESS,
    PAGE,
    UNCLASSIFIED,
    group_of,
)
from naiad.transport.http1.head import Head

_READING = frozenset(("GET", "HEAD", "OPTIONS"))
_FOREIGN_SITES = frozenset((b"cross-site", b"same-site"))
"""Values of Sec-Fetch-Site. A page on another port of this machine is same-site."""
_TYPES_OF_FORMS = frozenset((b"text/plain", b"multipart/form-data"))
_FORM = b"application/x-www-form-urlencoded"
"""curl -d sends this, too, so it counts only when a browser sends it."""
_PAGE_TYPES = frozenset((b"application/json", b"application/octet-stream"))
_UNCONTROLLED = frozenset((INFERENCE, HEALTH, MODEL_READINESS, PAGE, UNCLASSIFIED))
"""API classes that change nothing about the server; their clients may send what they like."""


class BrowserCheck:
    def __init__(
        self,
        allowed_hosts: frozenset[str] | None = None,
        allowed_origins: frozenset[str] = frozenset(),
    ) -> None:
        """`allowed_hosts` are names besides those of this machine; None allows any `Host`."""
        self._hosts = allowed_hosts
        self._origins = allowed_origins
        self._own_name = socket.gethostname().lower()

    def refusal(self, head: Head, api: str) -> NaiadError | None:
        host = head.headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and group_of(api) != HEALTH and not self._is_own(_name(host)):
            return _denied(
                f"the host name '{_name(host)}' is not one of this server's; start the server with "
                f"--allowed-host {_name(host)} if it is"
            )
        if head.method in _READING:
            return None
        origin = head.headers.get(b"origin")
        site = head.headers.get(b"sec-fetch-site")
        if self._is_foreign(origin, site, host):
            return _denied("requests of pages from other origins are not allowed")
        content_type = head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if origin is not None or site is not None:
            if content_type not in _PAGE_TYPES and (head.content_length or head.is_chunked):
                return _denied("pages must send 'Content-Type: application/json'")
        elif content_type in _TYPES_OF_FORMS and api not in _UNCONTROLLED:
            return _denied("expected 'Content-Type: application/json'")
        return None

    def is_own_host(self, head: Head) -> bool:
        """True if `Host` is a name that no page of the internet can have."""
        return self._is_own(_name(head.headers.get(b"host", b"").decode("latin-1").lower()))

    def _is_own(self, name: str) -> bool:
        """A name that no page of the internet can have. An address cannot be made to point
        elsewhere, a name without a dot is one of the local network, such as that of a container,
        and a request without a name comes from no browser."""
        assert self._hosts is not None
        if "." not in name or name == self._own_name or name.endswith(".localhost"):
            return True
        if name in self._hosts or "*" in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _is_foreign(self, origin: bytes | None, site: bytes | None, host: str) -> bool:
        if origin is None:
            return site in _FOREIGN_SITES
        text = origin.decode("latin-1").lower()
        if text in self._origins or "*" in self._origins:
            return False
        return text.partition("://")[2] != host or not host


def _name(host: str) -> str:
    """`Host` without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def _denied(message: str) -> NaiadError:
    return NaiadError(Code.PERMISSION_DENIED, message)
