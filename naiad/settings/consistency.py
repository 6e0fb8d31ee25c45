"""Checks that options which are valid one by one are also valid together.

`check_consistency` rejects a contradictory command line. `check_creation` raises the errors that
Triton raises when it creates the server.

Rule: only the options are checked here. The code that opens a directory or a port reports that it
      is missing or in use.
"""

from __future__ import annotations

from itertools import combinations

from naiad.errors import invalid_arg
from naiad.settings.compound import Restriction
from naiad.settings.exposure import has_console, has_keys, is_loopback
from naiad.settings.latency import latency_metrics
from naiad.settings.option import OptionError
from naiad.settings.settings import Settings


def check_consistency(settings: Settings) -> None:
    if settings.load_model and settings.model_control_mode != "explicit":
        raise OptionError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    _check_endpoints(settings)
    _check_restrictions("http-restricted-api", "api", settings.http_restricted_api)
    _check_restrictions("grpc-restricted-protocol", "protocol", settings.grpc_restricted_protocol)
    try:
        latency_metrics(settings.metrics_config)
    except ValueError as failure:
        raise OptionError(f'Bad option: "--metrics-config".\n{failure}') from None


def check_creation(settings: Settings) -> None:
    if not settings.model_repository and not settings.model:
        raise invalid_arg("--model-repository must be specified")
    if settings.audit_log and not has_keys(settings):
        raise invalid_arg("--audit-log requires --api-key-file, --api-key or --jwt-jwks")
    _check_tokens(settings)
    if has_console(settings) and not (has_keys(settings) or is_loopback(settings.http_address)):
        raise invalid_arg(
            f"--console=true requires API keys, because other machines can reach "
            f"{settings.http_address}:{settings.http_port}; add --api-key-file FILE, or listen on "
            "this machine only with --http-address 127.0.0.1"
        )
    if "*" in settings.load_model and len(settings.load_model) > 1:
        raise invalid_arg(
            "Wildcard model name '*' must be the ONLY startup model if specified at all."
        )
    if len({entry.cache for entry in settings.cache_config}) > 1:
        raise invalid_arg(
            "found multiple cache configurations, but only a single cache is currently supported"
        )


def _check_tokens(settings: Settings) -> None:
    """A token is only worth something with the issuer and the audience that it must have."""
    for flag, value in (
        ("--jwt-issuer", settings.jwt_issuer),
        ("--jwt-audience", settings.jwt_audience),
    ):
        if settings.jwt_jwks and not value:
            raise invalid_arg(f"--jwt-jwks requires {flag}, which every token must name")
        if value and not settings.jwt_jwks:
            raise invalid_arg(f"{flag} requires --jwt-jwks FILE|URL, the keys of the issuer")


def _check_endpoints(settings: Settings) -> None:
    endpoints = [
        ("HTTP", settings.allow_http, settings.http_address, settings.http_port),
        ("GRPC", settings.allow_grpc, settings.grpc_address, settings.grpc_port),
        ("metrics", settings.allow_metrics, settings.metrics_address, settings.metrics_port),
    ]
    allowed = [(name, address, port) for name, is_allowed, address, port in endpoints if is_allowed]
    for (name, address, port), (other_name, other_address, other_port) in combinations(allowed, 2):
        if port == other_port != 0 and address == other_address:
            raise OptionError(
                f"The server cannot listen to {name} requests and {other_name} requests"
                f" at the same address and port {address}:{port}"
            )


def _check_restrictions(flag: str, noun: str, restrictions: tuple[Restriction, ...]) -> None:
    seen: set[str] = set()
    for restriction in restrictions:
        for category in restriction.categories:
            if category in seen:
                raise OptionError(
                    f'Bad option: "--{flag}".\n'
                    f"restricted {noun} '{category}' can not be specified in multiple config groups"
                )
            seen.add(category)
