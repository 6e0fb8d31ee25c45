"""Routing policies in front of real engines: two replicas of SmolLM2-135M on this machine's CPU.

    python -m bench.routing_real [--policies round_robin least_load prefix] [--requests 120]

It needs `naiad pull smollm2`, the extras llm and kv-events, and two cores: each replica has one.
The traffic shares prefixes: every request begins with one of several system prompts, chosen with
equal chance, and ends with a question of its own. A cache holds about 60% of the system prompts, so
that they fit into two caches and not into one. Servers start anew for each policy, with empty
caches.
Printed for each policy: the time to the first token, and the share of prompt tokens that a cache
had. Goal: `prefix` has at most half the median of `round_robin`, and is never worse than
`least_load`. Run it on a quiet machine; the hit rate and the tokens computed do not depend on that.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from naiad.backends.llm.checkpoint import find_checkpoint
from tests.server.gates import eventually
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags
from tests.server.llm_checkpoint import parameter, write_model

KV_BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 4
"""SmolLM2-135M has 30 layers with 3 heads of 64 keys and 64 values each, in float32."""
BLOCK = 16
WORDS = "abcdefghijklmnopqrstuvwxyz"
"""A letter after a space is one token."""


class Result(msgspec.Struct):
    policy: str
    waits_s: list[float]
    num_prompt_tokens: float
    num_cached_tokens: float

    @property
    def median_ms(self) -> float:
        return statistics.median(self.waits_s) * 1e3

    @property
    def p95_ms(self) -> float:
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.95)] * 1e3

    @property
    def hit_rate(self) -> float:
        return self.num_cached_tokens / max(self.num_prompt_tokens, 1)


class Traffic:
    def __init__(self, arguments: argparse.Namespace) -> None:
        chance = random.Random(arguments.seed)

        def text(count: int) -> str:
            return " ".join(chance.choice(WORDS) for _ in range(count))

        systems = [text(arguments.tokens) for _ in range(arguments.prompts)]
        self.prompts = [
            f"{chance.choice(systems)} {text(chance.randint(5, 25))}"
            for _ in range(arguments.requests)
        ]


class Fleet:
    """Two servers with a core each, and a router with one policy."""

    def __init__(self, folder: Path, policy: str, arguments: argparse.Namespace) -> None:
        cache_tokens = int(arguments.tokens * arguments.prompts * arguments.cache_share)
        checkpoint = find_checkpoint("smollm2", [])
        tokenizer = write_tokenizer(folder / "tokenizer", checkpoint)
        rows = []
        self.servers: list[Server] = []
        cores = sorted(os.sched_getaffinity(0))
        for number in range(2):
            name = f"replica{number}"
            events, replay, _ = free_ports()
            settings: dict[str, object] = {
                "checkpoint": checkpoint,
                "engine": "native",
                "device": "cpu",
                "max_model_len": 2048,
                "max_num_seqs": 8,
                "block_size": BLOCK,
                "kv_cache_bytes": cache_tokens * KV_BYTES_PER_TOKEN,
                "kv_events_endpoint": f"tcp://127.0.0.1:{events}",
                "kv_events_replay_endpoint": f"tcp://127.0.0.1:{replay}",
            }
            text = 'backend: "llm"\n' + "".join(
                parameter(key, value) for key, value in settings.items()
            )
            write_model(folder / name, "smollm2", text)
            ports = free_ports()
            pinned = ["taskset", "-c", str(cores[number % len(cores)])]
            command = naiad_command(
                "serve", f"--model-repository={folder / name}", *port_flags(ports)
            )
            environment = naiad_environment({"OMP_NUM_THREADS": "1"})
            self.servers.append(Server([*pinned, *command], ports, environment))
            rows.append(
                f'[[replica]]\nurl = "http://127.0.0.1:{ports[0]}"\nname = "{name}"\n'
                f'kv_events = "tcp://127.0.0.1:{events}"\nkv_replay = "tcp://127.0.0.1:{replay}"\n'
            )
        config = folder / "router.toml"
        model = f'\n[model.smollm2]\npolicy = "{policy}"\ntokenizer = "{tokenizer}"\n'
        config.write_text("\n".join(rows) + model)
        for server in self.servers:
            server.wait_started(300)
        ports = free_ports()
        command = naiad_command("router", f"--config={config}", *port_flags(ports))
        self.router = Server(command, ports, naiad_environment()).wait_started()
        eventually(self._is_ready, "the replicas are not ready", 300)

    def _is_ready(self) -> bool:
        rows = json.loads(self.router.get("/router/replicas")[1])["replicas"]
        return all(row["state"] == "ready" and "smollm2" in row["models"] for row in rows)

    def counted(self, name: str) -> float:
        """The sum of a counter over both servers."""
        total = 0.0
        for server in self.servers:
            for line in server.get("/metrics", "metrics")[1].decode().splitlines():
                if line.startswith(f"{name}{{"):
                    total += float(line.rpartition(" ")[2])
        return total

    def stop(self) -> None:
        for server in (self.router, *self.servers):
            server.stop()


def write_tokenizer(folder: Path, checkpoint: Path) -> Path:
    """Writes the tokenizer of a GGUF file as the file that the router reads."""
    from naiad.llm.checkpoint.gguf import open_gguf

    folder.mkdir(exist_ok=True)
    tokenizer = open_gguf(checkpoint).tokenizer
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str())
    return folder


def ask(port: int, prompt: str) -> float:
    """Sends one request and returns the seconds until its first token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 2, "stream": True, "seed": 1}
    start_s = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read()!r}")
    line = response.readline()
    wait_s = time.perf_counter() - start_s
    if not line.startswith(b"data: {"):
        raise RuntimeError(f"not an event: {line!r}")
    response.read()
    connection.close()
    return wait_s


def measure(policy: str, arguments: argparse.Namespace) -> Result:
    traffic = Traffic(arguments)
    with tempfile.TemporaryDirectory(prefix="naiad-routing-") as folder:
        fleet = Fleet(Path(folder), policy, arguments)
        try:
            queue = list(reversed(traffic.prompts))
            waits_s: list[float] = []
            lock = threading.Lock()

            def run() -> None:
                while True:
                    with lock:
                        if not queue:
                            return
                        prompt = queue.pop()
                    wait_s = ask(fleet.router.http_port, prompt)
                    with lock:
                        waits_s.append(wait_s)

            threads = [threading.Thread(target=run) for _ in range(arguments.clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if len(waits_s) != len(traffic.prompts):
                raise RuntimeError(f"{len(waits_s)} of {len(traffic.prompts)} responses came")
            return Result(
                policy,
                waits_s,
                fleet.counted("vllm:prefix_cache_queries_total"),
                fleet.counted("vllm:prefix_cache_hits_total"),
            )
        finally:
            fleet.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="*", default=["round_robin", "least_load", "prefix"])
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--prompts", type=int, default=16, help="number of system prompts")
    parser.add_argument("--tokens", type=int, default=300, help="tokens of each, about")
    parser.add_argument("--cache-share", type=float, default=0.6)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| policy | median ms | p95 ms | hit rate |\n|---|---:|---:|---:|", flush=True)
    results = {}
    for policy in arguments.policies:
        result = results[policy] = measure(policy, arguments)
        print(
            f"| {policy} | {result.median_ms:,.0f} | {result.p95_ms:,.0f} | "
            f"{result.hit_rate:.0%} |",
            flush=True,
        )
    if not {"round_robin", "least_load", "prefix"} <= set(results):
        return 0
    prefix = results["prefix"].median_ms
    is_good = (
        prefix <= results["round_robin"].median_ms / 2
        and prefix <= results["least_load"].median_ms * 1.02
    )
    print("ok" if is_good else "the goal is missed")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
