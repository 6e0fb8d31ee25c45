"""Times variants of the engine's kernels on one GPU, to choose the constants of the package.

    python bench/llm_kernels.py [gemv] [blas] [skinny] [decode] [prompt]

Weights rotate among copies that together exceed the L2 cache. Launches are captured in a graph, so
that the gaps between kernels are those of the engine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from naiad.llm.kernels import launch
from naiad.llm.kernels.decode_attention import DecodeAttention
from naiad.llm.kernels.gemv import gemv
from naiad.llm.kernels.prompt_attention import prompt_attention
from naiad.llm.kernels.skinny_gemm import skinny_gemm
from naiad.llm.step.chunk_plan import ChunkPlanner

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}


def graph_us(calls: list[Callable[[], object]], repeats: int = 5) -> float:
    """Returns the microseconds per call."""
    for call in calls[:2]:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(repeats):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return float(np.median(times))


def weights(shape: tuple[int, int]) -> list[torch.Tensor]:
    count = max(2, min(12, int(600e6 / (shape[0] * shape[1] * 2)) + 1))
    return [torch.randn(shape, device=DEVICE, dtype=BF16).mul_(0.02) for _ in range(count)]


def report(name: str, us: float, num_bytes: float) -> None:
    print(f"{name:62} {us:9.2f} us {num_bytes / us / 1e6:7.3f} TB/s", flush=True)


def bench_gemv() -> None:
    for name, shape in SHAPES.items():
        ws = weights(shape)
        x = torch.randn((1, shape[1]), device=DEVICE, dtype=BF16)
        norm = torch.ones(shape[1], device=DEVICE, dtype=BF16)
        num_bytes = shape[0] * shape[1] * 2
        out = torch.zeros((1, shape[0]), device=DEVICE, dtype=BF16)
        report(
            f"gemv {name} cublas", graph_us([lambda w=w: F.linear(x, w) for w in ws * 2]), num_bytes
        )
        kinds = {
            "gated": name == "up",
            "normed": name in ("qkv", "head", "up"),
            "residual": name in ("o", "down"),
        }
        best: list[tuple[float, str]] = []
        for block_n, block_k, warps in [
            (4, 256, 4), (8, 256, 4), (16, 256, 8), (2, 512, 2), (4, 256, 2), (2, 256, 2),
            (8, 256, 8), (4, 512, 8), (2, 1024, 8), (16, 256, 4), (32, 256, 8), (16, 128, 4),
        ]:  # fmt: skip
            try:
                us = graph_us([
                    lambda w=w: gemv(
                        x, w, norm if kinds["normed"] else None, 1e-5, None,
                        out if kinds["residual"] else None, kinds["gated"],
                        block_n, block_k, warps,
                    ) for w in ws * 2
                ])  # fmt: skip
            except Exception as error:
                print(f"gemv {name} {block_n} {block_k} {warps}: {str(error)[:80]}")
                continue
            best.append((us, f"gemv {name} n{block_n} k{block_k} w{warps}"))
        for us, text in sorted(best)[:4]:
            report(text, us, num_bytes)
        print(f"    worst {max(best)[0]:.1f} us {max(best)[1]}")


def bench_blas() -> None:
    for name, shape in SHAPES.items():
        ws = weights(shape)
        for rows in (2, 8, 16, 32, 64, 128, 256):
            x = torch.randn((rows, shape[1]), device=DEVICE, dtype=BF16)
            residual = torch.randn((rows, shape[0]), device=DEVICE, dtype=BF16)
            report(
                f"blas {name} m{rows} linear",
                graph_us([lambda w=w: F.linear(x, w) for w in ws * 2]),
                shape[0] * shape[1] * 2,
            )
            if name in ("o", "down"):
                report(
                    f"blas {name} m{rows} addmm",
                    graph_us([lambda w=w: torch.addmm(residual, x, w.t()) for w in ws * 2]),
                    shape[0] * shape[1] * 2,
                )


@triton.jit
def _tma_kernel(
    x_ptr, w_desc, out_ptr, num_rows, num_outputs, k_per_split, x_stride, part_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_N
    split = tl.program_id(1)
    rows = tl.arange(0, BLOCK_M)
    outputs = first + tl.arange(0, BLOCK_N)
    x_at = x_ptr + rows[None, :] * x_stride + split * k_per_split + tl.arange(0, BLOCK_K)[:, None]
    launch.wait_for_inputs(IS_DEPENDENT)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(0, k_per_split, BLOCK_K):
        w = w_desc.load([first, split * k_per_split + k])
        x = tl.load(x_at + k, mask=(rows < num_rows)[None, :], other=0.0)
        acc = tl.dot(w, x, acc)
    tl.store(
        out_ptr + split * part_stride + rows[None, :] * num_outputs + outputs[:, None],
        acc,
        mask=(rows < num_rows)[None, :] & (outputs < num_outputs)[:, None],
    )


def skinny_tma(
    x: torch.Tensor,
    w: torch.Tensor,
    splits: int,
    block_n: int,
    block_k: int,
    warps: int,
    stages: int,
) -> torch.Tensor:
    out = torch.empty((splits, x.shape[0], w.shape[0]), dtype=torch.float32, device=x.device)
    desc = TensorDescriptor.from_tensor(w, [block_n, block_k])
    _tma_kernel[(triton.cdiv(w.shape[0], block_n), splits)](
        x, desc, out, x.shape[0], w.shape[0], w.shape[1] // splits, x.stride(0), out.stride(0),
        BLOCK_M=max(16, triton.next_power_of_2(x.shape[0])), BLOCK_N=block_n, BLOCK_K=block_k,
        IS_DEPENDENT=launch.USE_PDL, num_warps=warps, num_stages=stages, launch_pdl=launch.USE_PDL,
    )  # fmt: skip
    return out


def bench_skinny() -> None:
    configs = [
        (64, 128, 4, 4),
        (64, 128, 4, 3),
        (64, 64, 4, 6),
        (128, 64, 4, 5),
        (128, 64, 8, 4),
        (128, 128, 8, 3),
        (64, 256, 4, 3),
        (64, 64, 4, 4),
    ]
    for rows in (16, 32, 64, 128):
        for name, shape in SHAPES.items():
            ws = weights(shape)
            x = torch.randn((rows, shape[1]), device=DEVICE, dtype=BF16)
            best: list[tuple[float, str]] = []
            for kind, function in (("ptr", skinny_gemm),):
                for config in configs:
                    for splits in (1, 2, 4, 8):
                        tiles = shape[0] // config[0] * splits
                        if shape[1] % (splits * config[1]) or not 100 <= tiles <= 2100:
                            continue
                        try:
                            us = graph_us(
                                [lambda w=w: function(x, w, splits, *config) for w in ws * 2],
                                repeats=3,
                            )
                        except Exception as error:
                            print(f"skinny {kind} {name} {config} {splits}: {str(error)[:80]}")
                            continue
                        block_n, block_k, warps, stages = config
                        variant = f"n{block_n} k{block_k} w{warps} s{stages} split{splits}"
                        best.append((us, f"skinny {kind} {name} m{rows} {variant}"))
            best.sort()
            for us, text in best[:3]:
                report(text, us, shape[0] * shape[1] * 2)
            print(f"    worst {best[-1][0]:.1f} us {best[-1][1]}")


def bench_decode(layout: tuple[int, int, int] = (32, 8, 128)) -> None:
    num_heads, num_kv_heads, dim = layout
    page = 16
    for size, low, high in [
        (1, 150, 250),
        (1, 1000, 1001),
        (16, 128, 256),
        (64, 128, 256),
        (256, 128, 256),
        (131, 200, 1500),
        (256, 700, 1300),
        (32, 100, 2000),
    ]:
        lengths = np.random.default_rng(0).integers(low, high, size).astype(np.int32)
        width = -(-int(lengths.max()) // page)
        copies = max(1, min(8, int(400e6 / (size * width * page * num_kv_heads * dim * 4))))
        caches = [
            torch.randn((2, size * width + 1, num_kv_heads, page, dim), device=DEVICE, dtype=BF16)
            for _ in range(copies)
        ]
        tables = (torch.randperm(size * width, device=DEVICE).to(torch.int32) + 1).view(size, width)
        query = torch.randn((size, num_heads * dim), device=DEVICE, dtype=BF16)
        out = torch.empty_like(query)
        num_bytes = int(lengths.sum()) * num_kv_heads * dim * 4
        best: list[tuple[float, str]] = []
        for programs in (2, 4, 8, 16):
            planner = ChunkPlanner(132, num_kv_heads)
            planner.budget = max(1, 132 * programs // num_kv_heads)
            records = np.zeros(planner.max_chunks(size) * 8, np.int32)
            count = planner.plan(np.arange(size, dtype=np.int32), lengths, records)
            chunks = torch.from_numpy(records).to(DEVICE).view(-1, 8)
            attend = DecodeAttention(
                size, records.shape[0] // 8, num_heads, num_kv_heads, dim, DEVICE
            )
            for tile, warps, stages in [
                (32, 1, 4),
                (32, 2, 4),
                (32, 4, 3),
                (64, 4, 2),
                (64, 4, 3),
                (64, 2, 5),
                (128, 4, 3),
            ]:
                us = graph_us([
                    lambda c=c: attend(
                        query, out, c[0], c[1], tables, chunks, dim**-0.5, 0.0, 0, False,
                        tile, warps, stages,
                    ) for c in caches * (8 // copies + 1)
                ])  # fmt: skip
                variant = f"programs{programs} chunks{count} tile{tile} w{warps} s{stages}"
                best.append((us, f"decode b{size} ctx{low}-{high} {variant}"))
        best.sort()
        for us, text in best[:5]:
            report(text, us, num_bytes)
        print(f"    worst {best[-1][0]:.1f} us {best[-1][1]}")


def bench_prompt() -> None:
    num_heads, num_kv_heads, dim, page = 32, 8, 128, 16
    for count, length in [(4, 2048), (1, 8192), (16, 512), (64, 128)]:
        width = length // page
        cache = torch.randn(
            (2, count * width + 1, num_kv_heads, page, dim), device=DEVICE, dtype=BF16
        )
        tables = (torch.randperm(count * width, device=DEVICE).to(torch.int32) + 1).view(
            count, width
        )
        query = torch.randn((count * length, num_heads * dim), device=DEVICE, dtype=BF16)
        key = torch.randn((count * length, num_kv_heads, dim), device=DEVICE, dtype=BF16)
        out = torch.empty_like(query)
        flops = 2 * count * length * length * num_heads * dim
        best: list[tuple[float, str]] = []
        for tokens, keys, warps, stages in [
            (64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 5), (64, 32, 4, 5), (128, 64, 4, 3),
            (128, 64, 4, 5), (64, 64, 8, 3),
        ]:  # fmt: skip
            tiles = [
                (s * length + start, start, tokens, s)
                for start in range(length - tokens, -1, -tokens)
                for s in range(count)
            ]
            put = torch.tensor(tiles, dtype=torch.int32, device=DEVICE)
            try:
                us = graph_us(
                    [
                        lambda: prompt_attention(
                            query,
                            out,
                            cache[0],
                            cache[1],
                            tables,
                            put,
                            dim**-0.5,
                            0.0,
                            0,
                            length,
                            tokens,
                            keys,
                            warps,
                            stages,
                        )
                    ]
                    * 4
                )
            except Exception as error:
                print(f"prompt {tokens} {keys} {warps} {stages}: {str(error)[:80]}")
                continue
            best.append((us, f"prompt {count}x{length} t{tokens} k{keys} w{warps} s{stages}"))
        cu = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=DEVICE)
        q3 = query.view(-1, num_heads, dim)
        us = graph_us(
            [
                lambda: torch.ops.aten._flash_attention_forward(
                    q3, key, key, cu, cu, length, length, 0.0, True, False
                )
            ]
            * 4
        )
        best.append((us, f"prompt {count}x{length} aten flash varlen"))
        for us, text in sorted(best):
            print(f"{text:62} {us:9.2f} us {flops / us / 1e6:7.1f} TFLOP/s", flush=True)


def main() -> None:
    torch.manual_seed(0)
    for name in sys.argv[1:] or ["gemv", "blas", "skinny", "decode", "prompt"]:
        started = time.monotonic()
        globals()[f"bench_{name}"]()
        print(f"--- {name}: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
