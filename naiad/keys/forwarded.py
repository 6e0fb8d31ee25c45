"""What a request tells of the proxies that have passed it on.

A proxy that adds nothing cannot be told from a client. What a request says about its client's
address is believed only of a proxy that the operator trusts; anybody can send the fields.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable

import msgspec

from naiad.errors import Code, NaiadError
from naiad.keys.request_id import REQUEST_ID_HEADER, read_request_id

MAX_HOPS = 32
_FOR = re.compile(r"""(?:^|[;,])\s*for\s*=\s*("[^"]*"|[^;,\s]*)""", re.IGNORECASE)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_FIELDS = frozenset(
    (
        "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip",
        "cf-connecting-ip", "x-envoy-external-address",
    )
)  # fmt: skip


def forwarding_field(names: Iterable[str | bytes]) -> str:
    """The first of a request's fields, in lower case, that a proxy has added; empty if there is
    none."""
    for name in names:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        if text in _FIELDS or text.startswith(("x-forwarded-", "x-original-forwarded-")):
            return text
    return ""


def forwarded_refusal(field: str) -> NaiadError:
    """The refusal of what only clients of this machine may do."""
    return NaiadError(
        Code.PERMISSION_DENIED,
        f"the request came through a proxy, as its field '{field}' says, so nobody knows who sends "
        "it. Start the server with --api-key-file to let others do this, or with "
        "--allow-file-override=true to let everybody",
    )


class Trail(msgspec.Struct, frozen=True):
    """Where a request comes from, as its head says."""

    addresses: tuple[str, ...] = ()
    """The nearest hop first."""
    request_id: str = ""


NO_TRAIL = Trail()


def read_trail(header: Callable[[str], bytes | None]) -> Trail:
    """`header` reads a field of the request. `Forwarded` counts before `X-Forwarded-For`."""
    request_id = read_request_id(header(REQUEST_ID_HEADER))
    forwarded, plain = header("forwarded"), header("x-forwarded-for")
    if forwarded:
        hops = _FOR.findall(forwarded.decode("latin-1"))
    elif plain:
        hops = plain.decode("latin-1").split(",")
    elif request_id:
        return Trail(request_id=request_id)
    else:
        return NO_TRAIL
    return Trail(tuple(_host(hop) for hop in hops[: -MAX_HOPS - 1 : -1]), request_id)


def _host(hop: str) -> str:
    """The address of `192.0.2.1:80`, `"[2001:db8::1]:80"` or an address alone; empty for a name
    that hides it, such as `unknown`."""
    text = hop.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


class TrustedProxies:
    def __init__(self, networks: tuple[Network, ...] = ()) -> None:
        self._networks = networks

    def client(self, peer: str, trail: Trail) -> str:
        """The first address, seen from this server, that is not one of a trusted proxy."""
        client = peer
        for hop in trail.addresses:
            if not hop or not self._is_trusted(client):
                break
            client = hop
        return client

    def _is_trusted(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            host = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
        return any((mapped or host) in network for network in self._networks)


NO_PROXIES = TrustedProxies()
