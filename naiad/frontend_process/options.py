"""What the server process decides for its frontend processes before it forks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from naiad.frontends.http.options import HttpOptions
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.grpc.options import GrpcOptions


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
