"""Measures the cost of ensembles and BLS, and compares their throughput with Triton's.

    python -m bench.ensembles
        Runs everything and prints markdown for RESULTS.md.
    python -m bench.ensembles cost throughput wrk large --rounds 3
    python -m bench.ensembles throughput --only chain

cost        Compares a request to an ensemble of three steps with one request to each step, on
            Naiad alone:
            `cpu`    CPU of the process tree per ensemble request, divided by the sum of the CPU
                     per request to each step, at c=16.
            `p50`    The client's median latency at c=1, divided by the sum of the medians of the
                     three steps.
            `inside` The server's time for an ensemble request, divided by the sum of its times for
                     the three steps of the same requests, from its statistics at c=1. This is the
                     cost of the data flow without client and network.
throughput  Runs perf_analyzer with 16 connections on the three steps as an ensemble, as blocking
            BLS calls and as awaited BLS calls.
wrk         Does the same with wrk and JSON at 64 connections. perf_analyzer uses about 100 us of
            the same cores per request, wrk a few.
large       Runs the three steps on tensors of 1 and 4 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import oracle
from bench.compare import OURS, Pair, both, rows, take_turns
from bench.load import STEADY, has_wrk, perf_analyzer, wrk
from bench.parts import add_parts
from bench.table import Row, markdown, over_starts
from tests.server.harness import Server

REPOSITORY = str(Path(__file__).parent / "pipelines")
STEPS = ("step_1", "step_2", "step_3")
MODELS = ("chain", "bls_chain", "bls_together")
GOAL = 1.3


def check_alike(servers: Pair) -> None:
    body = {
        "inputs": [
            {"name": "X", "datatype": "FP32", "shape": [1, 16], "data": [k / 3 for k in range(16)]}
        ]
    }
    for model in MODELS:
        responses = {
            name: json.loads(server.post(f"/v2/models/{model}/infer", body)[1])
            for name, server in servers.items()
        }
        data = {
            name: response.get("outputs", [{}])[0].get("data")
            for name, response in responses.items()
        }
        if data["triton"] != data["naiad"] or not data["naiad"]:
            sys.exit(f"the responses of the servers differ: {responses}")


def own_time_ns(server: Server, model: str) -> tuple[int, int]:
    """Returns the number of requests of a model and their nanoseconds, from its statistics."""
    (statistics,) = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"]
    success = statistics["inference_stats"]["success"]
    return int(success["count"]), int(success["ns"])


def inside(server: Server) -> float:
    """Runs the chain once more and returns the ratio of the server's own times."""
    before = {model: own_time_ns(server, model) for model in ("chain", *STEPS)}
    if perf_analyzer(server, "chain", "grpc", 1, []) is None:
        return float("nan")
    mean = {}
    for model, (count, ns) in before.items():
        now = own_time_ns(server, model)
        mean[model] = (now[1] - ns) / (now[0] - count)
    return mean["chain"] / sum(mean[step] for step in STEPS)


def measure_cost(server: Server, rounds: int) -> list[str]:
    ratios: dict[str, list[float]] = {"cpu": [], "p50": [], "inside": []}
    for _ in range(rounds):
        wide = {model: perf_analyzer(server, model, "grpc", 16, []) for model in ("chain", *STEPS)}
        narrow = {model: perf_analyzer(server, model, "grpc", 1, []) for model in ("chain", *STEPS)}
        ratios["inside"].append(inside(server))
        if all(wide.values()) and all(narrow.values()):
            cpu = {model: figures.cpu_us for model, figures in wide.items() if figures is not None}
            p50 = {
                model: figures.p50_us for model, figures in narrow.items() if figures is not None
            }
            ratios["cpu"].append(cpu["chain"] / sum(cpu[step] for step in STEPS))
            ratios["p50"].append(p50["chain"] / sum(p50[step] for step in STEPS))
            print(
                f"cpu us {cpu}\np50 us {p50}\ninside {ratios['inside'][-1]:.2f}",
                file=sys.stderr,
                flush=True,
            )
    lines = ["| ensemble of three / sum of its three steps | ratio | goal |", "|---|---:|---|"]
    for name, values in ratios.items():
        value = statistics.median(values) if values else float("nan")
        lines.append(f"| {name} | {value:.2f} | < {GOAL} {'yes' if value < GOAL else 'NO'} |")
    return lines


def measure_throughput(servers: Pair, rounds: int, models: Sequence[str]) -> list[Row]:
    made: list[Row] = []
    for model in models:
        for protocol in ("http", "grpc"):
            medians = take_turns(
                servers,
                lambda server, m=model, p=protocol: perf_analyzer(server, m, p, 16, []),  # type: ignore[misc]
                rounds,
            )
            made += rows(f"{model} {protocol} c=16", medians, {"infer_per_s": ">= 2"})
    return made


def measure_wrk(servers: Pair, rounds: int, models: Sequence[str]) -> list[Row]:
    if not has_wrk():
        print("wrk is not installed (package wrk): JSON under wrk is not measured", file=sys.stderr)
        return []
    made: list[Row] = []
    for model in models:
        medians = take_turns(servers, lambda server, m=model: wrk(server, 64, 4, m), rounds)  # type: ignore[misc]
        made += rows(f"{model} JSON wrk 64 connections", medians, {"infer_per_s": ">= 2"})
    return made


def measure_large(servers: Pair, rounds: int, models: Sequence[str]) -> list[Row]:
    made: list[Row] = []
    for mebibytes in (1, 4):
        shape = ["--shape", f"X:{mebibytes << 18}", *STEADY]
        medians = take_turns(
            servers,
            lambda server, s=shape: perf_analyzer(server, "large_chain", "grpc", 4, s),  # type: ignore[misc]
            rounds,
        )
        made += rows(f"large_chain {mebibytes} MiB grpc c=4", medians, {"infer_per_s": ">= 2"})
    return made


PARTS = {"throughput": measure_throughput, "wrk": measure_wrk, "large": measure_large}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_parts(parser, ["cost", *PARTS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--starts",
        type=int,
        default=1,
        help="number of times both servers are started (except for `cost`)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MODELS,
        help="models of throughput and wrk to measure; may be repeated",
    )
    chosen = parser.parse_args(arguments)
    parts = chosen.parts
    oracle.install()
    starts: list[list[Row]] = []
    cost: list[str] = []
    for _ in range(chosen.starts):
        with both(REPOSITORY, OURS) as servers:
            check_alike(servers)
            if "cost" in parts and not cost:
                cost = measure_cost(servers["naiad"], chosen.rounds)
            models = chosen.only or MODELS
            starts.append(
                [
                    row
                    for part in PARTS
                    if part in parts
                    for row in PARTS[part](servers, chosen.rounds, models)
                ]
            )
    made = over_starts(starts)
    flags = f"--rounds {chosen.rounds} --starts {chosen.starts}"
    command = f"python -m bench.ensembles {' '.join(parts)} {flags}"
    print(
        f"`{command}` on {os.cpu_count()} cores, {platform.platform()}, Triton {oracle.VERSION}\n"
    )
    print("\n".join([*cost, "", markdown(made)] if made else cost))


if __name__ == "__main__":
    main()
