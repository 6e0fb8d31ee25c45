"""Parses the address of a service (`-u`) and builds the TLS context for it.

In:  a text such as `localhost:8000`, `https://host/v1` or `[::1]:8001`.
Out: an Address. Raises OptionError for any other text.
"""

from __future__ import annotations

import ssl
import urllib.parse

import msgspec

from naiad.settings.option import OptionError


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool = False
    path: str = ""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"


class ClientTlsFiles(msgspec.Struct, frozen=True):
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    should_verify_peer: bool = True
    should_verify_host: bool = True


def parse_address(text: str, default_port: int) -> Address:
    has_scheme = "://" in text
    try:
        parts = urllib.parse.urlsplit(text if has_scheme else f"//{text}")
        port = parts.port
    except ValueError as error:
        raise OptionError(f"'{text}' is not an address: {error}") from None
    if parts.scheme not in ("", "http", "https", "grpc", "grpcs") or not parts.hostname:
        raise OptionError(f"'{text}' is not an address, expected host:port or http(s)://host:port")
    is_tls = parts.scheme in ("https", "grpcs")
    if port is None:
        port = {"https": 443, "http": 80}.get(parts.scheme, default_port)
    return Address(parts.hostname, port, is_tls, parts.path.rstrip("/"))


def tls_context(files: ClientTlsFiles, alpn: list[str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file or None)
        if files.certificate_file:
            context.load_cert_chain(files.certificate_file, files.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"failed to load the TLS files: {error}") from None
    context.check_hostname = files.should_verify_host and files.should_verify_peer
    if not files.should_verify_peer:
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(alpn)
    return context
