"""Who can reach the server, as far as the options tell.

In:  Settings. Out: the addresses that other machines can reach without a key, and the warning about
     them.
"""

from __future__ import annotations

import ipaddress

from naiad.settings.settings import Settings


def has_keys(settings: Settings) -> bool:
    return bool(settings.api_key_file or settings.api_key or settings.jwt_jwks)


def is_loopback(address: str) -> bool:
    """True if only this machine can reach the address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")


def has_console(settings: Settings) -> bool:
    if settings.console == "auto":
        return settings.allow_http and is_loopback(settings.http_address)
    return settings.allow_http and settings.console == "true"


def open_addresses(settings: Settings) -> list[str]:
    """The addresses that other machines can reach. A client certificate protects an address."""
    endpoints = [
        (
            settings.allow_http and not settings.http_use_ssl_mutual,
            settings.http_address,
            settings.http_port,
        ),
        (
            settings.allow_grpc and not settings.grpc_use_ssl_mutual,
            settings.grpc_address,
            settings.grpc_port,
        ),
    ]
    return [
        f"{address}:{port}"
        for is_open, address, port in endpoints
        if is_open and not is_loopback(address)
    ]


def exposure_warning(settings: Settings) -> str:
    """The warning about a server that everybody may use; empty if there is nothing to warn of."""
    addresses = open_addresses(settings)
    if not addresses or has_keys(settings):
        return ""
    return (
        f"Everybody who can reach {' and '.join(addresses)} may use and control this server, "
        "because it requires no API keys. To require them, run `naiad key create NAME "
        "--api-key-file keys.json` and start the server with --api-key-file keys.json. To serve "
        "this machine only, start it with --http-address 127.0.0.1 --grpc-address 127.0.0.1."
    )
