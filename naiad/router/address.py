"""Where a replica listens: an URL or host:port -> host, port and whether it speaks TLS."""

from __future__ import annotations

import ipaddress
import re
import socket
import urllib.parse

import msgspec

from naiad.errors import invalid_arg

_OUTSIDE = re.compile(r"[\x00-\x20\x7f-\xa0]")
"""urlsplit removes some of them without a word."""


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
    if _OUTSIDE.search(text):
        raise invalid_arg(f"{field} {text!a} has a blank or a control character")
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


def is_same_place(one: Address, host: str, port: int) -> bool:
    """True if `one` certainly leads to our own socket, which listens on host and port. Names
    are not looked up, but for those that every machine gives itself."""
    if one.port != port:
        return False
    name = one.host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return _parse_ip(host) in _LOOPBACKS
    if name == socket.gethostname().lower():
        return host in ("0.0.0.0", "::")
    ip = _parse_ip(name)
    if host in ("0.0.0.0", "::"):
        return ip is not None and _is_ours(ip)
    return ip is not None and ip == _parse_ip(host)


_LOOPBACKS = tuple(ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "0.0.0.0", "::"))


def _parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def _is_ours(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Only an address of this machine can be bound. 0.0.0.0 is one: it leads to the loopback."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError:
        return False
    return True
