"""Where a replica listens: an URL or host:port -> host, port and whether it speaks TLS."""

from __future__ import annotations

import urllib.parse

import msgspec

from naiad.errors import invalid_arg


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool = False

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, schemes: tuple[str, str], field: str) -> Address:
    """`schemes` are the names without and with TLS. Raises NaiadError."""
    plain, secure = schemes
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"{plain}://{text}")
        port = parts.port
    except ValueError as error:
        raise invalid_arg(f"{field} '{text}' is not an address: {error}") from None
    if parts.scheme not in schemes or not parts.hostname or parts.username is not None:
        raise invalid_arg(
            f"{field} '{text}' is not an address, expected {plain}://HOST:PORT or "
            f"{secure}://HOST:PORT"
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise invalid_arg(
            f"{field} '{text}' has a path, expected only {plain}://HOST:PORT: the router keeps the "
            "paths of its clients"
        )
    is_tls = parts.scheme == secure
    if port is None:
        if parts.scheme not in ("http", "https"):
            raise invalid_arg(f"{field} '{text}' has no port, expected HOST:PORT")
        port = 443 if is_tls else 80
    return Address(parts.hostname, port, is_tls)
