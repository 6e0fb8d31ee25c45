"""Ensembles and BLS: what the way between steps costs, and how many requests pass beside the
genuine Triton.

    python -m bench.ensembles                       everything; prints markdown for RESULTS.md
    python -m bench.ensembles cost throughput wrk large --rounds 3
    python -m bench.ensembles throughput --only chain

cost        A request through an ensemble of three steps against three requests, one to each step, on our server alone:
            `cpu`    CPU of the whole process tree per ensemble request / the sum of the CPU per request to each step (c=16);
            `p50`    the client's median latency at c=1 / the sum of the three medians;
            `inside` the server's own time for an ensemble request / the sum of its times for the three steps of those same requests,
                     from its statistics at c=1: no client, no wire, only what the data flow adds.
throughput  perf_analyzer at 16 connections on the chain as an ensemble, as blocking BLS calls, as awaited BLS calls.
wrk         The same with wrk and JSON at 64 connections. perf_analyzer itself takes some 100 us of the same cores per request, wrk a few.
large       The chain on tensors of 1 and 4 MiB.
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
        answers = {
            name: json.loads(server.post(f"/v2/models/{model}/infer", body)[1])
            for name, server in servers.items()
        }
        data = {
            name: answer.get("outputs", [{}])[0].get("data") for name, answer in answers.items()
        }
        if data["triton"] != data["naiad"] or not data["naiad"]:
            sys.exit(f"the two servers answer differently: {answers}")


def own_time_ns(server: Server, model: str) -> tuple[int, int]:
    """(requests, nanoseconds) that the server counts for a model."""
    (found,) = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"]
    success = found["inference_stats"]["success"]
    return int(success["count"]), int(success["ns"])


def inside(server: Server) -> float:
    """One more run of the chain, seen from the server's own clock."""
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
            cpu = {model: found.cpu_us for model, found in wide.items() if found is not None}
            p50 = {model: found.p50_us for model, found in narrow.items() if found is not None}
            ratios["cpu"].append(cpu["chain"] / sum(cpu[step] for step in STEPS))
            ratios["p50"].append(p50["chain"] / sum(p50[step] for step in STEPS))
            print(
                f"cpu us {cpu}\np50 us {p50}\ninside {ratios['inside'][-1]:.2f}",
                file=sys.stderr,
                flush=True,
            )
    lines = ["| ensemble of three / sum of its three steps | ratio | goal |", "|---|---:|---|"]
    for name, found in ratios.items():
        value = statistics.median(found) if found else float("nan")
        lines.append(f"| {name} | {value:.2f} | < {GOAL} {'yes' if value < GOAL else 'NO'} |")
    return lines


def measure_throughput(servers: Pair, rounds: int, models: Sequence[str]) -> list[Row]:
    made: list[Row] = []
    for model in models:
        for protocol in ("http", "grpc"):
            found = take_turns(
                servers,
                lambda server, m=model, p=protocol: perf_analyzer(server, m, p, 16, []),  # type: ignore[misc]
                rounds,
            )
            made += rows(f"{model} {protocol} c=16", found, {"infer_per_s": ">= 2"})
    return made


def measure_wrk(servers: Pair, rounds: int, models: Sequence[str]) -> list[Row]:
    if not has_wrk():
        print("wrk is not installed (package wrk): JSON under wrk is not measured", file=sys.stderr)
        return []
    made: list[Row] = []
    for model in models:
        found = take_turns(servers, lambda server, m=model: wrk(server, 64, 4, m), rounds)  # type: ignore[misc]
        made += rows(f"{model} JSON wrk 64 connections", found, {"infer_per_s": ">= 2"})
    return made


def measure_large(servers: Pair, rounds: int, models: Sequence[str]) -> list[Row]:
    made: list[Row] = []
    for mebibytes in (1, 4):
        shape = ["--shape", f"X:{mebibytes << 18}", *STEADY]
        found = take_turns(
            servers,
            lambda server, s=shape: perf_analyzer(server, "large_chain", "grpc", 4, s),  # type: ignore[misc]
            rounds,
        )
        made += rows(f"large_chain {mebibytes} MiB grpc c=4", found, {"infer_per_s": ">= 2"})
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
        help="so often both servers are started anew (not for `cost`)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=MODELS,
        help="of throughput and wrk; may be given several times",
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
    command = f"python -m bench.ensembles {' '.join(parts)} --rounds {chosen.rounds} --starts {chosen.starts}"
    print(
        f"`{command}` on {os.cpu_count()} cores, {platform.platform()}, Triton {oracle.VERSION}\n"
    )
    print("\n".join([*cost, "", markdown(made)] if made else cost))


if __name__ == "__main__":
    main()
