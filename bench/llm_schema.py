"""Measures the cost of a JSON schema: SmolLM2-135M with and without one, on each engine, with 1 and
8 concurrent requests, and the first use of a new schema.

    naiad pull smollm2; python -m bench.llm_schema

Both kinds of request write exactly NUM_TOKENS tokens (the schema requires more than that) and take
turns, round by round. A schema is compiled at its first use, so each round uses a new schema for
that case. Every figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from naiad.backends.llm.checkpoint import PULLED, cache_dir
from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_model

NUM_TOKENS = 64
CONCURRENCIES = (1, 8)
ENDLESS = {
    "type": "array",
    "minItems": 200,
    "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--engines", default="openvino,native")
    chosen = options.parse_args()
    engines = chosen.engines.split(",")
    checkpoint = cache_dir() / PULLED["smollm2"]
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            settings = {
                "checkpoint": checkpoint,
                "engine": engine,
                "num_threads": 2,
                "device": "cpu",
            }
            write_model(
                Path(folder),
                engine,
                'backend: "llm"\n'
                + "".join(parameter(name, value) for name, value in settings.items()),
            )
        with naiad([folder]) as server:
            print(
                "| engine | concurrent requests | tok/s without | tok/s with a schema | ratio |\n"
                "|---|---:|---:|---:|---:|"
            )
            for engine in engines:
                for concurrency in CONCURRENCIES:
                    print_rates(server, engine, concurrency, chosen.rounds)
            print(
                "\n| engine | first token, ms: no schema | known | new | new, maxLength 100 |\n"
                "|---|---:|---:|---:|---:|"
            )
            for engine in engines:
                print_first_use(server, engine, chosen.rounds)


def print_rates(server: Server, engine: str, concurrency: int, num_rounds: int) -> None:
    schemas = {"without": None, "with": ENDLESS}
    rates: dict[str, list[float]] = {kind: [] for kind in schemas}
    for number in range(num_rounds + 1):
        for kind, schema in schemas.items():
            start_s = time.perf_counter()
            with ThreadPoolExecutor(concurrency) as pool:
                futures = [
                    pool.submit(generate, server, engine, f"{number} {index}", schema, NUM_TOKENS)
                    for index in range(concurrency)
                ]
                num_tokens = sum(future.result() for future in futures)
            if number:  # the first round warms up
                rates[kind].append(num_tokens / (time.perf_counter() - start_s))
    without, constrained = (statistics.median(rates[kind]) for kind in schemas)
    rates_text = f"{without:.0f} | {constrained:.0f} | {constrained / without:.2f}"
    print(f"| {engine} | {concurrency} | {rates_text} |", flush=True)


def print_first_use(server: Server, engine: str, num_rounds: int) -> None:
    times: dict[str, list[float]] = {"none": [], "known": [], "new": [], "sized": []}
    for number in range(num_rounds):
        schemas = {
            "none": None,
            "known": ENDLESS,
            "new": new_schema(number),
            "sized": new_schema(number, maxLength=100),
        }
        for kind, schema in schemas.items():
            start_s = time.perf_counter()
            generate(server, engine, f"first {number} {kind}", schema, 1)
            times[kind].append((time.perf_counter() - start_s) * 1e3)
    medians = " | ".join(f"{statistics.median(values):.0f}" for values in times.values())
    print(f"| {engine} | {medians} |", flush=True)


def new_schema(number: int, **limits: int) -> dict[str, Any]:
    text = {"type": "string", **limits}
    fields = {
        f"title_{number}": text,
        "pages": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": text},
    }
    return {"type": "object", "properties": fields, "required": list(fields)}


def generate(
    server: Server, engine: str, topic: str, schema: dict[str, Any] | None, max_tokens: int
) -> int:
    body: dict[str, Any] = {
        "model": engine,
        "messages": [{"role": "user", "content": f"List books about {topic}."}],
        "max_tokens": max_tokens,
    }
    body |= {"temperature": 0, "ignore_eos": schema is None}
    if schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "books", "schema": schema},
        }
    status, response = server.post("/v1/chat/completions", body)
    assert status == 200, response
    num_tokens: int = json.loads(response)["usage"]["completion_tokens"]
    return num_tokens


if __name__ == "__main__":
    main()
