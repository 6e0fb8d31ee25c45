"""`--cache-config` -> the response cache that it asks for.

Settings are Triton's: `local,size=N` and `redis,host=H`, with port, user, password, db, timeouts in
milliseconds and TLS.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from naiad.core.clock import Clock
from naiad.errors import NaiadError, invalid_arg
from naiad.scheduling.cache.cache import ResponseCache
from naiad.scheduling.cache.local_cache import LocalCache
from naiad.scheduling.cache.redis_cache import RedisCache, RedisOptions

REDIS_USER = "TRITONCACHE_REDIS_USERNAME"
REDIS_PASSWORD = "TRITONCACHE_REDIS_PASSWORD"
REDIS_SETTINGS = frozenset(
    {
        "host",
        "port",
        "user",
        "password",
        "db",
        "connect_timeout",
        "wait_timeout",
        "tls_enabled",
        "cacert",
        "cert",
        "key",
        "sni",
    }
)


def build_cache(kind: str, settings: Mapping[str, str], clock: Clock) -> ResponseCache:
    """Raises NaiadError."""
    match kind:
        case "local":
            return LocalCache(_size(settings))
        case "redis":
            return RedisCache(_redis_options(settings), clock)
    raise invalid_arg(
        f"unable to find the response cache '{kind}': this server has 'local' and 'redis'"
    )


def _size(settings: Mapping[str, str]) -> int:
    if "size" not in settings:
        raise invalid_arg(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field."
        )
    size = _number(settings, "size", 0, "LocalCache")
    if size <= 0:
        raise invalid_arg(
            f"Failed to initialize LocalCache: 'size' is {size}, expected a number of bytes above 0"
        )
    return size


def _redis_options(settings: Mapping[str, str]) -> RedisOptions:
    """User and password may come from the environment, which other users of the machine cannot
    read as they can read a command line."""
    for name in settings.keys() - REDIS_SETTINGS:
        raise invalid_arg(
            f"Failed to initialize RedisCache: unknown setting '{name}', expected one of "
            f"{', '.join(sorted(REDIS_SETTINGS))}"
        )
    if not settings.get("host"):
        raise invalid_arg("Failed to initialize RedisCache: must specify 'host'")
    return RedisOptions(
        settings["host"],
        _number(settings, "port", 6379, "RedisCache"),
        settings.get("user") or os.environ.get(REDIS_USER, ""),
        settings.get("password") or os.environ.get(REDIS_PASSWORD, ""),
        _number(settings, "db", 0, "RedisCache"),
        lookup_timeout_s=_number(settings, "wait_timeout", 1000, "RedisCache") / 1000,
        connect_timeout_s=_number(settings, "connect_timeout", 5000, "RedisCache") / 1000,
        tls=_tls(settings),
        server_name=settings.get("sni", ""),
    )


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    if settings.get("tls_enabled", "false").lower() not in ("true", "1", "on", "yes"):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.get("cacert"))
        if "cert" in settings:
            context.load_cert_chain(settings["cert"], settings.get("key"))
    except OSError as error:
        raise invalid_arg(
            f"Failed to initialize RedisCache: certificates cannot be read: {error}"
        ) from error
    return context


def _number(settings: Mapping[str, str], name: str, default: int, cache: str) -> int:
    text = settings.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise _not_a_number(cache, name, text) from None


def _not_a_number(cache: str, name: str, text: str) -> NaiadError:
    return invalid_arg(f"Failed to initialize {cache}: '{name}' is '{text}', expected a number")
