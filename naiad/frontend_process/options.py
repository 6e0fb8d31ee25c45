"""What the server process decides for its frontend processes before it forks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from naiad.frontends.http.options import HttpOptions
from naiad.keys.forwarded import Network
from naiad.repository.load.host_policies import HostPlace
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.grpc.options import GrpcOptions

if TYPE_CHECKING:
    from naiad.keys.token.verifier import TokenVerifier


@dataclass(frozen=True)
class KeyOptions:
    """What the guard of a frontend needs besides the keys themselves."""

    static_keys: tuple[str, ...]
    """The texts of `--api-key`."""
    headers: tuple[str, ...]
    guarded_apis: frozenset[str]
    is_audited: bool
    make_verifier: Callable[[], TokenVerifier] | None
    """Builds what verifies signed tokens; None where nobody issues them."""
    trusted_proxies: tuple[Network, ...] = ()


@dataclass(frozen=True)
class FrontendOptions:
    num_processes: int
    http: HttpOptions
    grpc: GrpcOptions
    http_tls: Callable[[], CertificateWatch | None]
    """Reads the certificates of the port; returns None without TLS. Raises NaiadError."""
    grpc_tls: Callable[[], CertificateWatch | None]
    memory_bytes: int
    """The budget for requests and responses of all processes together."""
    keys: KeyOptions | None = None
    """None where nobody needs an API key."""
    places: tuple[HostPlace, ...] = ()
    """The CPU cores and the NUMA node of each process, where a host policy says so."""
    is_namespacing: bool = False
    """A name in a request may mean a model of any repository."""
