"""Products with quantized weights on one GPU, configuration by configuration: microseconds and the
rate at which weights are read.

    python -m bench.llm_quant_kernels                   the matrices of an 8B Llama, all cases
    python -m bench.llm_quant_kernels --only int4 --rows 16 --rows 64

Every case is checked against float64 first. Weights are taken in turn from several copies, so that
none is found in the L2 cache; launches are captured in a graph. Kernels are compiled by many
processes ahead of the timing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from naiad.llm.kernels.gemv import gemv
from naiad.llm.kernels.int4_gemm import int4_gemm, int4_tiles, join_scales, widen_int4
from naiad.llm.kernels.int4_gemv import int4_gemv, prepare_row
from naiad.llm.kernels.quantize_rows import quantize_rows
from naiad.llm.kernels.scaled_gemm import scaled_gemm

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "up": (28672, 4096), "down": (4096, 14336)}
COLD_BYTES = 200 << 20
NUM_LAUNCHES = 24


class Case:
    def __init__(
        self,
        kind: str,
        name: str,
        rows: int,
        label: str,
        num_bytes: int,
        run: Callable[[int], Tensor],
    ) -> None:
        self.kind, self.name, self.rows, self.label, self.num_bytes, self.run = (
            kind,
            name,
            rows,
            label,
            num_bytes,
            run,
        )


class Weights:
    """Copies of one matrix in one format, and the numbers that they stand for."""

    def __init__(self, kind: str, name: str) -> None:
        outputs, inputs = SHAPES[name]
        torch.manual_seed(3)
        if kind == "int4":
            values = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device="cuda")
            scales = ((torch.rand((outputs, inputs // 128), device="cuda") + 0.5) * 0.01).bfloat16()
            zeros = torch.randint(4, 12, (outputs, inputs // 128), dtype=torch.uint8, device="cuda")
            self.scales = join_scales(scales, zeros)
            spread = [t.float().repeat_interleave(128, 1) for t in (zeros, scales)]
            self.exact = (values.float() - spread[0]) * spread[1]
            first = int4_tiles(values)
        else:
            weight = torch.randn((outputs, inputs), device="cuda") * 0.02
            self.scales = weight.abs().amax(1) / 448
            first = (weight / self.scales[:, None]).to(torch.float8_e4m3fn)
            self.exact = first.float() * self.scales[:, None]
        self.num_bytes = first.nbytes
        self.copies = [first] + [first.clone() for _ in range(COLD_BYTES // first.nbytes)]

    def __getitem__(self, index: int) -> Tensor:
        return self.copies[index % len(self.copies)]


def int4_cases(name: str, rows: int, weights: Weights, x: Tensor) -> Iterator[Case]:
    inputs = SHAPES[name][1]

    def run(splits: int, values: dict[str, Any], index: int) -> Tensor:
        return int4_gemm(x, weights[index], weights.scales, 128, splits, **values)

    def case(splits: int, **values: Any) -> Case:
        label = f"splits {splits} " + " ".join(f"{key} {value}" for key, value in values.items())
        return Case("int4", name, rows, label, weights.num_bytes, partial(run, splits, values))

    if rows == 1:
        row = prepare_row(x)

        def run_gemv(outputs: int, tiles: int, warps: int, index: int) -> Tensor:
            return int4_gemv(
                row,
                weights[index],
                weights.scales,
                128,
                torch.bfloat16,
                None,
                None,
                outputs,
                tiles,
                warps,
            )[None]

        for outputs, tiles, warps in [
            (4, 32, 4), (8, 32, 4), (4, 16, 2), (8, 16, 2), (16, 16, 2), (8, 8, 1), (16, 8, 1),
            (4, 8, 1), (16, 8, 4), (32, 8, 4),
            (16, 32, 4), (8, 16, 4), (16, 16, 4), (32, 16, 4), (2, 64, 8), (4, 64, 8), (8, 8, 2),
        ]:  # fmt: skip
            yield Case(
                "int4",
                name,
                rows,
                f"gemv {outputs} {tiles} {warps}",
                weights.num_bytes,
                partial(run_gemv, outputs, tiles, warps),
            )
    elif rows <= 32:
        for splits, (block_n, warps), stages, fetched in itertools.product(
            (1, 2, 4, 8), ((64, 4), (128, 8), (32, 2)), (4, 6, 8), (4,)
        ):
            if (splits == 1 and name != "up") or (splits == 8 and name == "up"):
                continue
            yield case(
                splits, block_n=block_n, num_warps=warps, num_stages=stages, num_prefetched=fetched
            )
    elif rows <= 128:
        for splits, (block_n, warps), stages in itertools.product(
            (1, 2, 4), ((64, 4), (128, 8)), (3, 4, 5)
        ):
            if splits == 1 and name != "up":
                continue
            yield case(splits, block_n=block_n, num_warps=warps, num_stages=stages)
    else:
        for splits, (block_n, block_m, warps, stages) in itertools.product(
            (1, 2, 4),
            (
                (128, 128, 8, 2),
                (128, 128, 8, 3),
                (128, 256, 8, 2),
                (64, 128, 4, 2),
                (64, 128, 4, 3),
                (256, 128, 8, 3),
            ),
        ):
            if splits > 1 and (name == "up" or rows > 256):
                continue
            yield case(
                splits,
                block_m=block_m,
                block_n=block_n,
                num_warps=warps,
                num_stages=stages,
                dtype=torch.bfloat16,
            )

        def widen(index: int) -> Tensor:
            return (
                x @ widen_int4(weights[index], weights.scales, 128, inputs, torch.bfloat16).t()
            )[None]

        yield Case("int4", name, rows, "widen, then cuBLAS", weights.num_bytes, widen)


def fp8_cases(name: str, rows: int, weights: Weights, x: Tensor) -> Iterator[Case]:
    yield from (
        fp8_gemv_cases(name, weights, x) if rows == 1 else fp8_gemm_cases(name, rows, weights, x)
    )


def fp8_gemv_cases(name: str, weights: Weights, x: Tensor) -> Iterator[Case]:
    norm = (
        torch.ones(x.shape[1], device="cuda", dtype=torch.bfloat16)
        if name in ("qkv", "up")
        else None
    )
    blocks = [
        (4, 512, 1), (8, 512, 1), (8, 512, 2), (16, 512, 2), (16, 512, 4), (32, 512, 4),
        (32, 512, 8), (4, 1024, 2), (8, 1024, 4),
        (8, 512, 8), (4, 1024, 4), (4, 512, 2), (2, 1024, 4), (8, 1024, 2), (4, 2048, 4),
        (8, 2048, 8), (4, 2048, 8),
    ]  # fmt: skip

    def run(block: tuple[int, int, int], index: int) -> Tensor:
        return gemv(x, weights[index], norm, 0.0, None, None, name == "up", *block, weights.scales)[
            None
        ]

    for block in blocks:
        yield Case("fp8", name, 1, f"gemv {block}", weights.num_bytes, partial(run, block))


def fp8_gemm_cases(name: str, rows: int, weights: Weights, x: Tensor) -> Iterator[Case]:
    q = quantize_rows(x)

    def run(splits: int, block_n: int, block_k: int, stages: int, index: int) -> Tensor:
        warps = 4 if block_n == 64 else 8
        return scaled_gemm(
            q.values,
            weights[index],
            weights.scales,
            q.scales,
            0,
            splits,
            block_n,
            block_k,
            warps,
            stages,
        )

    def run_library(x_scales: Tensor, w_scales: Tensor, index: int) -> Tensor:
        product: Tensor = torch._scaled_mm(
            q.values,
            weights[index].t(),
            x_scales,
            w_scales,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return product[None]

    shapes = ((128, 4), (128, 6), (256, 3), (256, 4))
    for splits, block_n, (block_k, stages) in itertools.product(
        (1, 2, 4, 8), (64, 128), shapes if rows <= 512 else ()
    ):
        if (
            (splits > 2 and name == "up")
            or (splits == 1 and name != "up")
            or (splits == 8 and rows > 16)
        ):
            continue
        if (block_n + min(128, max(16, rows))) * block_k * stages > 225_000:
            continue
        label = f"splits {splits} block_n {block_n} block_k {block_k} stages {stages}"
        yield Case(
            "fp8",
            name,
            rows,
            label,
            weights.num_bytes,
            partial(run, splits, block_n, block_k, stages),
        )
    one = torch.ones((), device="cuda")
    row_wise = partial(run_library, q.scales, weights.scales[None])
    yield Case("fp8", name, rows, "torch._scaled_mm, scales per row", weights.num_bytes, row_wise)
    yield Case(
        "fp8",
        name,
        rows,
        "torch._scaled_mm, one scale (unscaled)",
        weights.num_bytes,
        partial(run_library, one, one),
    )


def cases(
    kinds: list[str], rows: list[int], names: list[str]
) -> Iterator[tuple[Case, Weights, Tensor]]:
    for kind, name in itertools.product(kinds, names):
        weights = Weights(kind, name)
        for count in rows:
            x = torch.randn((count, SHAPES[name][1]), device="cuda").bfloat16()
            for case in (int4_cases if kind == "int4" else fp8_cases)(name, count, weights, x):
                yield case, weights, x


def check(case: Case, weights: Weights, x: Tensor) -> float:
    out = case.run(0).double().sum(0)
    rows = min(4, x.shape[0])
    expected = x[:rows].double() @ weights.exact.double().t()
    if case.kind == "fp8" and "gemv" in case.label and case.name in ("qkv", "up"):
        expected = expected * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True))
        if case.name == "up":
            gate, up = expected.chunk(2, -1)
            expected = torch.nn.functional.silu(gate) * up
    return float((out[:rows] - expected).norm() / expected.norm())


def time_us(run: Callable[[int], Tensor]) -> float:
    run(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(NUM_LAUNCHES):
            run(index)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
    graph.replay()
    for event in events[:-1]:
        event.record()
        graph.replay()
    events[-1].record()
    torch.cuda.synchronize()
    times = sorted(first.elapsed_time(last) for first, last in itertools.pairwise(events))
    return float(times[len(times) // 2] * 1e3 / NUM_LAUNCHES)


def compile_share(
    kinds: list[str], rows: list[int], names: list[str], share: int, num_shares: int
) -> None:
    for index, (case, _, _) in enumerate(cases(kinds, rows, names)):
        if index % num_shares == share:
            try:
                case.run(0)
            except Exception as error:
                print(
                    f"{case.name} {case.label}: {type(error).__name__} {str(error)[:120]}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=["int4", "fp8"])
    parser.add_argument("--rows", action="append", type=int)
    parser.add_argument("--name", action="append", choices=list(SHAPES))
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--best", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    given = (
        arguments.only or ["int4", "fp8"],
        arguments.rows or [1, 16, 64, 128, 256, 8192],
        arguments.name or list(SHAPES),
    )
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(target=compile_share, args=(*given, share, arguments.processes))
        for share in range(arguments.processes)
    ]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for case, weights, x in cases(*given):
        try:
            error, us = check(case, weights, x), time_us(case.run)
        except Exception as problem:
            print(
                f"{case.name} {case.rows} {case.label}: {type(problem).__name__} "
                f"{str(problem)[:120]}",
                flush=True,
            )
            continue
        line: dict[str, Any] = {
            "label": case.label,
            "us": us,
            "bytes": case.num_bytes,
            "error": error,
        }
        found.setdefault((case.kind, case.rows, case.name), []).append(line)
    for (kind, rows, name), lines in sorted(found.items()):
        lines.sort(key=lambda line: line["us"])
        outputs, inputs = SHAPES[name]
        libraries = [
            other
            for other in lines[arguments.best :]
            if "torch" in other["label"] or "cuBLAS" in other["label"]
        ]
        for line in lines[: arguments.best] + libraries:
            rate = (
                f"{line['bytes'] / line['us'] / 1e6:5.2f} TB/s "
                f"{2 * rows * outputs * inputs / line['us'] / 1e6:6.0f} TFLOP/s"
            )
            print(
                f"{kind} {rows:5} {name:5} {line['us']:8.2f} us {rate} error {line['error']:.1e} "
                f" {line['label']}"
            )
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"/".join(map(str, key)): value for key, value in found.items()}, indent=1)
        )
    print(f"{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
