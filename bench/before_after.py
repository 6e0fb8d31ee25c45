"""Compares an earlier checkout with this one, and both with the genuine Triton, in one run.

    git worktree add /tmp/before COMMIT
    python -m bench.before_after --before /tmp/before --starts 3
        [--parts add_sub large wrk ensembles]

All three servers run next to each other and take turns under load; only one is loaded at a time.
The median over the rounds and starts is kept. Both checkouts use this environment's packages.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import ensembles, oracle
from bench.compare import REPOSITORY, Measure, Pair, launch, take_turns
from bench.load import STEADY, Figures, perf_analyzer, wrk
from tests.server.harness import Server, free_ports, naiad_environment, port_flags

HERE = Path(__file__).parents[1]
START = (
    "import importlib; cli = importlib.import_module('naiad.cli'); "
    "main = getattr(cli, 'main', None) or importlib.import_module('naiad.cli.main'); "
    "(main if callable(main) else main.main)()"
)
"""Starts `naiad` in any checkout; its entry point has moved once."""


def launch_checkout(
    folder: Path, repository: str, variables: Mapping[str, str] | None = None
) -> Server:
    ports = free_ports()
    command = [sys.executable, "-c", START, "serve", f"--model-repository={repository}"]
    environment = {**naiad_environment(variables), "PYTHONPATH": str(folder)}
    # Python looks for modules in the current directory first, which is this checkout.
    return Server([*command, *port_flags(ports)], ports, environment, cwd=folder)


@contextlib.contextmanager
def serving(before: Path, repository: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        servers = {
            "triton": launch("triton", repository),
            "before": launch_checkout(before, repository),
            "after": launch_checkout(HERE, repository),
        }
        for server in servers.values():
            stack.callback(server.stop)
        for server in servers.values():
            server.wait_started()
        yield servers


def _perf(model: str, protocol: str, concurrency: int, *extra: str) -> Measure:
    return lambda server: perf_analyzer(server, model, protocol, concurrency, list(extra))


def _wrk(connections: int) -> Measure:
    return lambda server: wrk(server, connections)


def _large(protocol: str) -> Measure:
    return _perf("identity_fp32", protocol, 4, "--shape", f"INPUT0:{1 << 18}", *STEADY)


PARTS: dict[str, tuple[str, dict[str, Measure]]] = {
    "add_sub": (
        REPOSITORY,
        {
            f"add_sub {protocol} c={concurrency}": _perf("add_sub", protocol, concurrency)
            for protocol in ("http", "grpc")
            for concurrency in (1, 16)
        },
    ),
    "large": (
        REPOSITORY,
        {f"identity_fp32 1 MiB {name} c=4": _large(name) for name in ("http", "grpc")},
    ),
    "wrk": (REPOSITORY, {"add_sub JSON wrk 64 connections": _wrk(64)}),
    "ensembles": (
        ensembles.REPOSITORY,
        {
            f"ensemble of three steps {name} c=16": _perf("chain", name, 16)
            for name in ("http", "grpc")
        },
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the earlier checkout")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--starts", type=int, default=3)
    chosen = parser.parse_args(arguments)
    oracle.install()
    figures: dict[str, list[dict[str, Figures]]] = {}
    for _ in range(chosen.starts):
        for part in chosen.parts:
            repository, measures = PARTS[part]
            with serving(chosen.before.resolve(), repository) as servers:
                for what, measure in measures.items():
                    medians = take_turns(servers, measure, chosen.rounds)
                    if medians is None:
                        print(f"{what}: no figures", file=sys.stderr)
                        continue
                    figures.setdefault(what, []).append(medians)
                    print(what, medians, file=sys.stderr, flush=True)
    print(f"{chosen.starts} starts on {os.cpu_count()} cores, Triton {oracle.VERSION}\n")
    print("| | figure | Triton | before | after | after / before | after / Triton |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for what, starts in figures.items():
        for field in (field.name for field in dataclasses.fields(Figures)):
            medians_of = {
                name: statistics.median(getattr(start[name], field) for start in starts)
                for name in ("triton", "before", "after")
            }
            triton, before, after = medians_of.values()
            print(
                f"| {what} | {field} | {triton:.0f} | {before:.0f} | {after:.0f} "
                f"| {after / before:.2f}x | {after / triton:.2f}x |"
            )


if __name__ == "__main__":
    main()
