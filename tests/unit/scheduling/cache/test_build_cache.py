from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.scheduling.cache.build_cache import build_cache
from naiad.scheduling.cache.local_cache import LocalCache
from naiad.scheduling.cache.redis_cache import RedisCache
from tests.fakes import FakeClock


def test_local() -> None:
    assert isinstance(build_cache("local", {"size": "1000"}, FakeClock()), LocalCache)


def test_redis_reads_its_secrets_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "hidden")
    cache = build_cache(
        "redis", {"host": "h", "port": "7", "db": "2", "wait_timeout": "50"}, FakeClock()
    )
    assert isinstance(cache, RedisCache)
    options = cache._options
    assert (
        options.host,
        options.port,
        options.database,
        options.lookup_timeout_s,
        options.password,
    ) == ("h", 7, 2, 0.05, "hidden")
    assert "hidden" not in repr(options)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (
            "local",
            {},
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field.",
        ),
        (
            "local",
            {"size": "much"},
            "Failed to initialize LocalCache: 'size' is 'much', expected a number",
        ),
        (
            "local",
            {"size": "0"},
            "Failed to initialize LocalCache: 'size' is 0, expected a number of bytes above 0",
        ),
        ("redis", {"port": "1"}, "Failed to initialize RedisCache: must specify 'host'"),
        (
            "redis",
            {"host": "h", "port": "x"},
            "Failed to initialize RedisCache: 'port' is 'x', expected a number",
        ),
        (
            "elsewhere",
            {"size": "1"},
            "unable to find the response cache 'elsewhere': this server has 'local' and 'redis'",
        ),
    ],
)
def test_wrong_cache_settings_are_refused(kind: str, settings: dict[str, str], words: str) -> None:
    with pytest.raises(NaiadError) as caught:
        build_cache(kind, settings, FakeClock())
    assert caught.value.message == words


def test_an_unknown_setting_of_redis_names_the_known_ones() -> None:
    with pytest.raises(
        NaiadError,
        match=r"unknown setting 'hots', expected one of cacert, cert, connect_timeout, db, host",
    ):
        build_cache("redis", {"hots": "h"}, FakeClock())
