"""Compares Naiad with Triton on the same machine, repository and load generator (`make bench`).

    python -m bench.compare
        Runs everything and prints markdown tables for RESULTS.md.
    python -m bench.compare add_sub wrk
        Runs only these parts. The parts are add_sub, large, wrk and models.
    python -m bench.compare --rounds 5 --json figures.json --server "COMMAND {repository} ..."
        Measures another command instead of `naiad serve`.

Both servers run at the same time, but only one is under load at a time. Before that, both must give
the same response to the same request. The result is the median over rounds and over starts: the
speed of a process varies by about a tenth from start to start. Absolute figures depend on the
machine; the ratios are the result.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import many_models, oracle
from bench.load import STEADY, Figures, has_wrk, perf_analyzer, wrk
from bench.parts import add_parts
from bench.table import Row, markdown, over_starts
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags

REPOSITORY = str(Path(__file__).parent / "repository")
OURS = (
    "{naiad} serve --model-repository={repository} --http-port={http} --grpc-port={grpc}"
    " --metrics-port={metrics}"
)
MANY_CLIENTS = {
    "asynchronous": ["--async", "--measurement-interval", "500"],
    "asynchronous, one thread": ["--async", "--max-threads", "1", "--measurement-interval", "500"],
}
"""Flags of perf_analyzer for 64 clients. In its default mode each client is a thread, and the main
thread extracts the requests of the last window one by one from a growing list. Over HTTP this needs
more CPU than either server, and mostly never ends. In asynchronous mode a few threads send all
requests, and short windows keep the list short. One thread leaves the most CPU to the servers, but
is limited to 15,000 to 20,000 requests per second over HTTP. The flags are the same for both
servers."""
Pair = dict[str, Server]
Measure = Callable[[Server], Figures | None]


def launch(name: str, repository: str, ours: str = OURS) -> Server:
    ports = free_ports()
    if name == "triton":
        return Server(
            oracle.serve_command([repository], port_flags(ports)), ports, oracle.serve_environment()
        )
    command = ours.format(
        naiad=shlex.join(naiad_command()),
        repository=repository,
        http=ports[0],
        grpc=ports[1],
        metrics=ports[2],
    )
    return Server(shlex.split(command), ports, naiad_environment())


@contextlib.contextmanager
def both(repository: str, ours: str) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        servers: Pair = {}
        for name in ("triton", "naiad"):
            servers[name] = launch(name, repository, ours)
            stack.callback(servers[name].stop)
            servers[name].wait_started()
        yield servers


def check_alike(servers: Pair) -> None:
    """Exits unless both servers give the same response."""
    body = {
        "inputs": [
            {
                "name": f"INPUT{n}",
                "datatype": "FP32",
                "shape": [1, 16],
                "data": [n + k / 3 for k in range(16)],
            }
            for n in (0, 1)
        ]
    }
    responses = {
        name: json.loads(server.post("/v2/models/add_sub/infer", body)[1])
        for name, server in servers.items()
    }
    if responses["triton"] != responses["naiad"]:
        sys.exit(f"the responses of the servers differ: {responses}")


def take_turns(servers: Pair, measure: Measure, rounds: int) -> dict[str, Figures] | None:
    rounds_of: dict[str, list[Figures]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            figures = measure(server) or measure(server)
            if figures is not None:
                rounds_of[name].append(figures)
    if not all(rounds_of.values()):
        return None
    fields = [field.name for field in dataclasses.fields(Figures)]
    return {
        name: Figures(*(statistics.median(getattr(one, field) for one in some) for field in fields))
        for name, some in rounds_of.items()
    }


def rows(what: str, medians: dict[str, Figures] | None, goals: dict[str, str]) -> list[Row]:
    if medians is None:
        print(f"{what}: no figures", file=sys.stderr)
        return []
    units = {"infer_per_s": "infer/s", "p50_us": "us p50", "cpu_us": "us CPU / infer"}
    made = [
        Row(
            what,
            getattr(medians["naiad"], field),
            getattr(medians["triton"], field),
            unit,
            goals.get(field, ""),
        )
        for field, unit in units.items()
    ]
    print(
        "  ".join(
            f"{row.what} {row.unit} {row.ours:.0f} / {row.theirs:.0f} = {row.ratio:.2f}"
            for row in made
        ),
        file=sys.stderr,
        flush=True,
    )
    return made


def measure_add_sub(servers: Pair, rounds: int) -> list[Row]:
    made: list[Row] = []
    for protocol in ("http", "grpc"):
        for concurrency in (1, 16, 64):
            goals = (
                {"p50_us": "<= 0.6"}
                if concurrency == 1
                else {"infer_per_s": ">= 2", "cpu_us": "<= 0.35"}
            )
            for how, extra in MANY_CLIENTS.items() if concurrency == 64 else {"": []}.items():
                medians = take_turns(
                    servers,
                    lambda server, p=protocol, c=concurrency, e=extra: perf_analyzer(
                        server, "add_sub", p, c, e
                    ),  # type: ignore[misc]
                    rounds,
                )
                made += rows(f"add_sub {protocol} c={concurrency} {how}".rstrip(), medians, goals)
    return made


def measure_large(servers: Pair, rounds: int) -> list[Row]:
    made: list[Row] = []
    for protocol in ("http", "grpc"):
        for mebibytes in (1, 4):
            shape = ["--shape", f"INPUT0:{mebibytes << 18}", *STEADY]
            medians = take_turns(
                servers,
                lambda server, p=protocol, s=shape: perf_analyzer(server, "identity_fp32", p, 4, s),  # type: ignore[misc]
                rounds,
            )
            made += rows(
                f"identity_fp32 {mebibytes} MiB {protocol} c=4", medians, {"infer_per_s": ">= 1.5"}
            )
    return made


def measure_wrk(servers: Pair, rounds: int) -> list[Row]:
    if not has_wrk():
        print("wrk is not installed (package wrk): JSON under wrk is not measured", file=sys.stderr)
        return []
    made: list[Row] = []
    for connections in (16, 64):
        medians = take_turns(servers, lambda server, c=connections: wrk(server, c), rounds)  # type: ignore[misc]
        made += rows(
            f"add_sub JSON wrk {connections} connections", medians, {"infer_per_s": ">= 2"}
        )
    return made


PARTS = {"add_sub": measure_add_sub, "large": measure_large, "wrk": measure_wrk}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_parts(parser, [*PARTS, "models"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--starts",
        type=int,
        default=1,
        help="number of times both servers are started (except for the part `models`)",
    )
    parser.add_argument(
        "--models", type=int, default=100, help="number of small models in the part `models`"
    )
    parser.add_argument("--repository", default=REPOSITORY)
    parser.add_argument(
        "--server",
        default=OURS,
        help="command of the server, with {repository} {http} {grpc} {metrics}",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args(arguments)
    parts = chosen.parts
    oracle.install()
    made: list[Row] = []
    if any(part in PARTS for part in parts):
        starts: list[list[Row]] = []
        for _ in range(chosen.starts):
            with both(chosen.repository, chosen.server) as servers:
                check_alike(servers)
                starts.append(
                    [
                        row
                        for part in parts
                        if part in PARTS
                        for row in PARTS[part](servers, chosen.rounds)
                    ]
                )
        made += over_starts(starts)
    if "models" in parts:
        made += many_models.measure(
            chosen.models, lambda name, repository: launch(name, repository, chosen.server)
        )
    flags = f"--rounds {chosen.rounds} --starts {chosen.starts}"
    command = f"python -m bench.compare {' '.join(parts)} {flags}"
    print(
        f"`{command}` on {os.cpu_count()} cores, {platform.platform()}, Triton {oracle.VERSION}\n"
    )
    print(markdown(made))
    if chosen.json:
        chosen.json.write_text(
            json.dumps([{**dataclasses.asdict(row), "ratio": row.ratio} for row in made], indent=1)
        )


if __name__ == "__main__":
    main()
