"""Measures language models with random weights on one GPU.

    python -m bench.llm_gpu
        Runs everything.
    python -m bench.llm_gpu --only batch --model llama-3.1-8b
    python -m bench.llm_gpu --only batch --model llama-3.1-8b --quantization fp8
        Measures quantized weights; --quantization may be repeated, auto is bf16.
    python -m bench.llm_gpu --only served --limit-s 115
        Compares the server with the engine alone, in at most 115 seconds.
    python -m bench.llm_gpu --profile 64 --only batch
        Shows the time of a decode step, kernel by kernel.
    python -m bench.llm_gpu --device cpu
        Tries the script with tiny shapes.

batch, nano and prefill measure the engine alone (llm_offline.py), served the whole server
(llm_served.py), and falcon compares with a Hugging Face pipeline in a model.py (llm_falcon.py).
Figures are printed immediately and written to --json after every step.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.llm_falcon import FalconRow, compare
from bench.llm_served import ServedModel, ServedRow
from bench.llm_shapes import SHAPES

if TYPE_CHECKING:
    from bench.llm_offline import Row

STAGES = ("batch", "prefill", "nano", "served", "falcon")
MODELS = ("llama-3.1-8b", "qwen3-0.6b", "qwen3-14b")
PROTOCOLS = ("grpc", "http")
START_LIMIT_S = 100.0


class Results(msgspec.Struct):
    offline: list[Any] = msgspec.field(default_factory=list)
    served: list[ServedRow] = msgspec.field(default_factory=list)
    falcon: list[FalconRow] = msgspec.field(default_factory=list)
    ready_s: float = 0.0
    shares: dict[str, float] = msgspec.field(default_factory=dict)
    """Tokens per second through the server, relative to the engine alone at the same
    concurrency."""


class Session:
    """The state that all stages share: command line, results, and remaining time."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.results = Results()
        self._start_s = time.monotonic()
        self._end_s = self._start_s + arguments.limit_s if arguments.limit_s else float("inf")

    def step(self, needs_s: float, name: str, action: Callable[[], Any]) -> Any:
        """Runs an action if there is enough time. Prints a failure and continues."""
        if time.monotonic() + needs_s > self._end_s:
            print(f"  {name}: skipped, less than {needs_s:.0f} s are left", flush=True)
            return None
        try:
            return action()
        except Exception:
            print(f"  {name} failed:\n{traceback.format_exc()}", flush=True)
            return None
        finally:
            self.save()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def save(self) -> None:
        if self.arguments.json is not None:
            self.arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(self.results)))


def measure_offline(session: Session, model: str, quantization: str) -> None:
    import torch

    from bench.llm_offline import OfflineBench, profile
    from naiad.llm.engine_settings import EngineSettings

    arguments = session.arguments
    settings = EngineSettings(
        device=arguments.device,
        max_model_len=min(8960, SHAPES[model]["max_position_embeddings"]),
        max_num_seqs=256,
        block_size=arguments.block_size,
        max_num_batched_tokens=arguments.batched_tokens,
        max_waiting_requests=4096,
        use_cuda_graphs=not arguments.eager,
        quantization=quantization,
    )
    bench = OfflineBench(model, settings)
    # Both share one list, so that each row is saved immediately.
    session.results.offline = bench.rows = session.results.offline
    is_gated = model in ("llama-3.1-8b", "tiny")
    for size in arguments.profile:
        session.step(
            10,
            "profile",
            lambda size=size: profile(bench, size, arguments.profile_context),  # type: ignore[misc]
        )
    if "batch" in arguments.only and is_gated:
        session.step(2, "first token", bench.first_token)
        for size in (1, 16, 64, 256):
            session.step(6, f"batch {size}", lambda size=size: bench.batch(size))  # type: ignore[misc]
        session.step(6, "closed loop", lambda: bench.closed_loop(64))
    if "prefill" in arguments.only and is_gated:
        session.step(
            6,
            "prefill",
            lambda: bench.prefill(
                min(2048, settings.max_model_len or 0) - 1 if model == "tiny" else 2048, 32
            ),
        )
        if model != "tiny":
            session.step(6, "prefill", lambda: bench.prefill(8192, 8))
    if "nano" in arguments.only:
        session.step(40, "nano-vllm", bench.nano)
    if torch.cuda.is_available():
        del bench
        gc.unfreeze()
        gc.collect()
        torch.cuda.empty_cache()


def measure_served(session: Session, model: str) -> None:
    """Measures both protocols, the engine alone, fixed rates, and both protocols again."""
    arguments, results = session.arguments, session.results
    settings = {
        "device": arguments.device,
        "max_model_len": 1024,
        "max_num_seqs": 256,
        "max_num_batched_tokens": arguments.batched_tokens,
    }
    with tempfile.TemporaryDirectory() as folder:
        served = ServedModel(Path(folder), model, SHAPES[model], settings)
        served.rows = results.served
        try:
            from bench import llm_offline  # imports torch while the server starts

            print(f"torch was imported {session.elapsed_s():.1f} s after the start", flush=True)
            served.wait(START_LIMIT_S)
            results.ready_s = served.ready_s
            size = arguments.clients
            window: dict[str, Any] = {"warm_s": arguments.warm_s, "window_s": arguments.window_s}
            needs_s = arguments.warm_s + arguments.window_s + 2
            rows = [
                session.step(
                    needs_s,
                    name,
                    lambda name=name: served.closed_loop(name, size, **window),  # type: ignore[misc]
                )
                for name in PROTOCOLS
            ]
            offline = session.step(
                18, "the engine alone", lambda: measure_alone(llm_offline, model, settings, size)
            )
            if offline is not None:
                results.offline += offline
                show_shares(results, [row for row in rows if row is not None], offline)
            for name in PROTOCOLS:
                session.step(
                    needs_s,
                    f"{name} at a rate",
                    lambda name=name: served.at_rate(name, arguments.rate, clients=size, **window),  # type: ignore[misc]
                )
            again = [
                session.step(
                    needs_s,
                    name,
                    lambda name=name: served.closed_loop(name, size, **window),  # type: ignore[misc]
                )
                for name in PROTOCOLS
            ]
            if offline is not None:
                show_shares(results, [row for row in again if row is not None], offline)
        finally:
            if arguments.log is not None:
                arguments.log.write_text("\n".join(served.server.lines))
            served.stop()


def measure_alone(llm_offline: Any, model: str, settings: dict[str, Any], size: int) -> list[Row]:
    from naiad.llm.engine_settings import EngineSettings

    bench = llm_offline.OfflineBench(model, EngineSettings(**settings, max_waiting_requests=4096))
    bench.batch(size)
    bench.batch(size)
    bench.closed_loop(size)
    rows: list[Row] = bench.rows
    return rows


def show_shares(results: Results, rows: list[ServedRow], offline: list[Row]) -> None:
    alone = max(row.tokens_per_s for row in offline if row.case.startswith("batch"))
    for row in rows:
        share = results.shares[f"{row.protocol} {len(results.shares)}"] = row.tokens_per_s / alone
        print(
            f"  {row.protocol}: {share:.1%} of the engine alone at the same concurrency"
            f" ({alone:.0f} tok/s); goal 95%",
            flush=True,
        )


def print_table(results: Results) -> None:
    print(f"\n{'case':16} {'model':14} {'tok/s':>10} {'seconds':>9} {'share':>7} {'gate':>7}")
    for row in results.offline:
        print(
            f"{row.case:16} {row.model:14} {row.tokens_per_s:10.1f} {row.seconds:9.3f}"
            f" {row.share:7.1%} {row.gate or '-':>7}"
        )
    if results.served:
        print(
            f"\n{'through the server':16} {'':14} {'tok/s':>10}"
            "   first token p50/90/99 ms    between tokens p50/90/99 ms"
        )
    for served in results.served:
        first, between = (
            "/".join(f"{value:.1f}" for value in values)
            for values in (served.first_token_ms, served.inter_token_ms)
        )
        print(
            f"{served.protocol + ' ' + served.case:21} {served.model:14}"
            f" {served.tokens_per_s:10.1f}   {first:>24}   {between:>24}"
        )
    if results.falcon:
        print(f"\n{'requests/s':16} {'engine':>10} {'pipeline':>10}")
        for size in sorted({row.concurrency for row in results.falcon}):
            by_way = {
                row.way: row.requests_per_s for row in results.falcon if row.concurrency == size
            }
            engine, pipeline = (by_way.get(way, float("nan")) for way in ("engine", "pipeline"))
            print(f"{size:<16} {engine:10.1f} {pipeline:10.1f}")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=list(SHAPES),
        help="shape for the engine alone; default: the three shapes with goals",
    )
    parser.add_argument("--only", action="append", choices=STAGES)
    parser.add_argument(
        "--quantization",
        action="append",
        choices=["auto", "fp8", "int8", "int4"],
        help="auto is bf16",
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--limit-s",
        type=float,
        default=0.0,
        help="maximum time in seconds; steps that would exceed it are skipped",
    )
    parser.add_argument("--profile", type=int, action="append", default=[])
    parser.add_argument("--profile-context", type=int, default=128)
    parser.add_argument("--batched-tokens", type=int, default=8192)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--eager", action="store_true", help="do not use CUDA graphs")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument(
        "--rate", type=float, default=50.0, help="requests per second of all clients together"
    )
    parser.add_argument("--warm-s", type=float, default=2.5)
    parser.add_argument("--window-s", type=float, default=7.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--log", type=Path, help="write the server's log to this file")
    arguments = parser.parse_args()
    arguments.only = arguments.only or list(STAGES)
    arguments.model = arguments.model or (["tiny"] if arguments.device == "cpu" else list(MODELS))
    return arguments


def main() -> None:
    session = Session(read_arguments())
    arguments = session.arguments
    is_small = arguments.device == "cpu"
    if "served" in arguments.only:
        session.step(
            START_LIMIT_S / 2,
            "served",
            lambda: measure_served(session, "tiny" if is_small else "llama-3.1-8b"),
        )
    if "falcon" in arguments.only:
        shape = "tiny-falcon" if is_small else "falcon-7b"
        session.step(
            60,
            "falcon",
            lambda: compare(shape, arguments.device, session.results.falcon, session.step),
        )
    if {"batch", "prefill", "nano"} & set(arguments.only):
        for model in arguments.model:
            for kind in arguments.quantization or ["auto"]:
                session.step(
                    20,
                    model,
                    lambda model=model, kind=kind: measure_offline(session, model, kind),  # type: ignore[misc]
                )
    print_table(session.results)
    session.save()


if __name__ == "__main__":
    main()
