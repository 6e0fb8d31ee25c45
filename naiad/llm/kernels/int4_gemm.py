"""int4 weights times 16-bit rows: the weights are widened in registers, between the memory and the
tensor cores.

In:  x [rows, inputs] and weights as `int4_tiles` lays them out. Out: parts [splits, rows, outputs],
     as of skinny_gemm. A weight is (q - z) * s with one s and z per output and group of inputs,
     rounded to 16 bits, as a library that widens ahead does it.

Layout: a tile is 16 outputs by 128 inputs, 16 words per output. Nibble j of word i holds input 16 *
        j + i of the tile: the nibbles at one place of all words are then neighbours among the
        inputs, and each place is one product of the tensor cores. Scale and zero point of a group
        share a word (`join_scales`): it is one load, and wide enough to be fetched ahead.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.launch import (
    IS_INTERPRETED,
    Kernel,
    next_power_of_2,
    prefetch,
    wait_for_inputs,
)

TILE_N = 16
TILE_K = 128


def _widening(magic: str, subtract: str, multiply: str) -> str:
    """PTX for two neighbouring words at a time, $8 and $9: magic + q is a 16-bit number; $10 holds
    magic + z or its negative, twice, and $12 the scale, twice."""
    lines = [
        ".reg .b32 low, high, t, one, none;",
        "mov.b32 one, 0x3F803F80;",
        "mov.b32 none, 0x80008000;",
    ]
    lines += ["prmt.b32 low, $8, $9, 0x5410;", "prmt.b32 high, $8, $9, 0x7632;"]
    for nibble in range(8):
        half = "low" if nibble < 4 else "high"
        if nibble % 4:
            lines.append(f"shr.u32 {half}, {half}, 4;")
        lines += [
            f"lop3.b32 t, {half}, 0x000F000F, {magic}, 0xEA;",
            subtract,
            multiply.format(nibble),
        ]
    return "{\n" + "\n".join(lines) + "\n}"


# Before compute capability 9.0 bfloat16 has no instruction for sums or products alone, only for
# both.
BF16_ASM = tl.constexpr(
    _widening("0x43004300", "fma.rn.bf16x2 t, t, one, $10;", "fma.rn.bf16x2 ${}, t, $12, none;")
)
F16_ASM = tl.constexpr(
    _widening("0x64006400", "sub.rn.f16x2 t, t, $10;", "mul.rn.f16x2 ${}, t, $12;")
)
CONSTRAINTS = tl.constexpr("=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r")


@triton.jit
def _twice(x):
    """The bits of a 16-bit number in both halves of a word."""
    return x.to(tl.uint16, bitcast=True).to(tl.int32) * 0x10001


@triton.jit
def _nibble(words, zero, scale, SHIFT: tl.constexpr, DTYPE: tl.constexpr):
    return (
        (((words >> SHIFT) & 15) - zero[:, None]).to(tl.float32) * scale[:, None].to(tl.float32)
    ).to(DTYPE)


@triton.jit
def _widen(words, zero, scale, DTYPE: tl.constexpr, IS_INTERPRETED: tl.constexpr):
    """Eight tensors of the shape of `words`, one per nibble. `zero` is int32 and `scale` of DTYPE,
    a number per line."""
    if IS_INTERPRETED:
        w0, w1 = _nibble(words, zero, scale, 0, DTYPE), _nibble(words, zero, scale, 4, DTYPE)
        w2, w3 = _nibble(words, zero, scale, 8, DTYPE), _nibble(words, zero, scale, 12, DTYPE)
        w4, w5 = _nibble(words, zero, scale, 16, DTYPE), _nibble(words, zero, scale, 20, DTYPE)
        w6, w7 = _nibble(words, zero, scale, 24, DTYPE), _nibble(words, zero, scale, 28, DTYPE)
    else:
        scales = tl.broadcast_to(_twice(scale)[:, None], words.shape)
        if tl.bfloat16 == DTYPE:
            zeros = tl.broadcast_to(((zero + 0xC300) * 0x10001)[:, None], words.shape)
            w0, w1, w2, w3, w4, w5, w6, w7 = tl.inline_asm_elementwise(
                BF16_ASM,
                CONSTRAINTS,
                [words, zeros, scales],
                is_pure=True,
                pack=2,
                dtype=(
                    tl.bfloat16,
                    tl.bfloat16,
                    tl.bfloat16,
                    tl.bfloat16,
                    tl.bfloat16,
                    tl.bfloat16,
                    tl.bfloat16,
                    tl.bfloat16,
                ),
            )
        else:
            zeros = tl.broadcast_to(((zero + 0x6400) * 0x10001)[:, None], words.shape)
            w0, w1, w2, w3, w4, w5, w6, w7 = tl.inline_asm_elementwise(
                F16_ASM,
                CONSTRAINTS,
                [words, zeros, scales],
                is_pure=True,
                pack=2,
                dtype=(
                    tl.float16,
                    tl.float16,
                    tl.float16,
                    tl.float16,
                    tl.float16,
                    tl.float16,
                    tl.float16,
                    tl.float16,
                ),
            )
    return w0, w1, w2, w3, w4, w5, w6, w7


@triton.jit
def parted_scale(joined):
    """A word of `join_scales`: the scale in float32, the zero point."""
    return (joined & -32).to(tl.float32, bitcast=True), joined & 31


@triton.jit
def _load_rows(x_at, row_mask, k, K, HAS_TAIL: tl.constexpr):
    """16 inputs of all rows, from input `k` on."""
    return tl.load(
        x_at,
        mask=row_mask & ((k + tl.arange(0, 16)) < K)[:, None] if HAS_TAIL else row_mask,
        other=0.0,
    )


@triton.jit
def _int4_gemm_kernel(
    x_ptr,
    w_ptr,
    scales_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    K,
    num_tiles,
    tiles_per_split,
    group_tiles,
    x_stride,
    part_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    PREFETCH: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    words = tl.arange(0, 16)
    first = split * tiles_per_split
    near = tl.minimum(outputs, (num_outputs + 15) // 16 * 16 - 1).to(tl.int64)
    line = (near // 16 * num_tiles + first) * 256 + near % 16 * 16
    w_at = w_ptr + line[:, None] + words[None, :]
    x_at = x_ptr + rows.to(tl.int64)[None, :] * x_stride + first * 128 + words[:, None]
    row_mask = (rows < num_rows)[None, :]
    out_mask = outputs < num_outputs
    for tile in tl.static_range(PREFETCH):
        prefetch(w_ptr + line + tile * 256, IS_DEPENDENT)
    wait_for_inputs(IS_DEPENDENT)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for tile in range(first, first + tiles_per_split):
        packed = tl.load(w_at, eviction_policy="evict_first")
        k = tile * 128
        # A tile lies in one group, or has NUM_GROUPS of them.
        for part in tl.static_range(NUM_GROUPS):
            group = tile // group_tiles * NUM_GROUPS + part
            known = out_mask & (k + part * (128 // NUM_GROUPS) < K) if HAS_TAIL else out_mask
            scale, zero = parted_scale(
                tl.load(scales_ptr + group * num_outputs + outputs, mask=known, other=0)
            )
            w0, w1, w2, w3, w4, w5, w6, w7 = _widen(
                packed, zero, scale.to(DTYPE), DTYPE, IS_INTERPRETED
            )
            if NUM_GROUPS == 1 or part == 0:
                acc = tl.dot(w0, _load_rows(x_at, row_mask, k, K, HAS_TAIL), acc)
                acc = tl.dot(w1, _load_rows(x_at + 16, row_mask, k + 16, K, HAS_TAIL), acc)
            if NUM_GROUPS == 1 or part == 2 // (8 // NUM_GROUPS):
                acc = tl.dot(w2, _load_rows(x_at + 32, row_mask, k + 32, K, HAS_TAIL), acc)
                acc = tl.dot(w3, _load_rows(x_at + 48, row_mask, k + 48, K, HAS_TAIL), acc)
            if NUM_GROUPS == 1 or part == 4 // (8 // NUM_GROUPS):
                acc = tl.dot(w4, _load_rows(x_at + 64, row_mask, k + 64, K, HAS_TAIL), acc)
                acc = tl.dot(w5, _load_rows(x_at + 80, row_mask, k + 80, K, HAS_TAIL), acc)
            if NUM_GROUPS == 1 or part == 6 // (8 // NUM_GROUPS):
                acc = tl.dot(w6, _load_rows(x_at + 96, row_mask, k + 96, K, HAS_TAIL), acc)
                acc = tl.dot(w7, _load_rows(x_at + 112, row_mask, k + 112, K, HAS_TAIL), acc)
        w_at += 256
        x_at += 128
    out_at = (
        out_ptr + split * part_stride + rows.to(tl.int64)[None, :] * num_outputs + outputs[:, None]
    )
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=out_mask[:, None] & row_mask)


@triton.jit
def _widen_all_kernel(
    w_ptr,
    scales_ptr,
    out_ptr,
    num_outputs,
    K,
    num_tiles,
    group,
    TILES: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    outputs = tl.program_id(0) * 16 + tl.arange(0, 16)
    out_mask = (outputs < num_outputs)[:, None, None]
    words = tl.arange(0, 16)
    nibbles = tl.arange(0, 8)
    first = tl.program_id(1) * TILES
    wait_for_inputs(IS_DEPENDENT)
    for tile in range(first, tl.minimum(first + TILES, num_tiles)):
        at = (
            (tl.program_id(0).to(tl.int64) * num_tiles + tile) * 256
            + tl.arange(0, 16)[:, None] * 16
            + words[None, :]
        )
        packed = tl.load(w_ptr + at)
        inputs = tile * 128 + nibbles[:, None] * 16 + words[None, :]
        scale_at = (inputs // group)[None, :, :] * num_outputs + outputs[:, None, None]
        mask = out_mask & (inputs < K)[None, :, :] if HAS_TAIL else out_mask
        scale, zero = parted_scale(tl.load(scales_ptr + scale_at, mask=mask, other=0))
        q = (packed[:, None, :] >> (nibbles * 4)[None, :, None]) & 15
        value = (q - zero).to(tl.float32) * scale
        out_at = outputs.to(tl.int64)[:, None, None] * K + inputs[None, :, :]
        tl.store(out_ptr + out_at, value.to(out_ptr.dtype.element_ty), mask=mask)


_launch_int4_gemm = Kernel(_int4_gemm_kernel)
_launch_widen_all = Kernel(_widen_all_kernel)


def int4_gemm(
    x: Tensor,
    tiles: Tensor,
    scales: Tensor,
    group: int,
    num_splits: int,
    block_m: int = 0,
    block_n: int = 64,
    num_warps: int = 4,
    num_stages: int = 4,
    num_prefetched: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """A group is 128 inputs or a multiple of it, or 64, or 32; num_splits divides the number of
    tiles along the inputs."""
    num_rows, num_inputs = x.shape
    num_outputs = scales.shape[1]
    num_tiles = tiles.shape[1]
    out = torch.empty((num_splits, num_rows, num_outputs), dtype=dtype, device=x.device)
    block_m = block_m or min(128, max(16, next_power_of_2(num_rows)))
    _launch_int4_gemm(
        (triton.cdiv(num_outputs, block_n), num_splits, triton.cdiv(num_rows, block_m)),
        (x, tiles, scales, out),
        (
            num_rows,
            num_outputs,
            num_inputs,
            num_tiles,
            num_tiles // num_splits,
            triton.cdiv(group, TILE_K),
            x.stride(0),
            out.stride(0),
        ),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        NUM_GROUPS=max(1, TILE_K // group),
        HAS_TAIL=num_inputs % TILE_K != 0,
        PREFETCH=min(num_prefetched, num_tiles // num_splits),
        IS_INTERPRETED=IS_INTERPRETED,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out


def widen_int4(
    tiles: Tensor, scales: Tensor, group: int, num_inputs: int, dtype: torch.dtype
) -> Tensor:
    """The whole matrix in 16 bits, for products with so many rows that a library's are the
    fastest."""
    num_outputs, num_tiles = scales.shape[1], tiles.shape[1]
    out = torch.empty((num_outputs, num_inputs), dtype=dtype, device=tiles.device)
    per_program = 4
    _launch_widen_all(
        (triton.cdiv(num_outputs, TILE_N), triton.cdiv(num_tiles, per_program)),
        (tiles, scales, out),
        (num_outputs, num_inputs, num_tiles, group),
        TILES=per_program,
        HAS_TAIL=num_inputs % TILE_K != 0,
        num_warps=4,
    )
    return out


def int4_tiles(values: Tensor) -> Tensor:
    """uint8 [outputs, inputs], each 0 to 15 -> int32 [outputs / 16, inputs / 128, 16, 16], padded
    with zeros."""
    num_outputs, num_inputs = values.shape
    pad_n, pad_k = -num_outputs % TILE_N, -num_inputs % TILE_K
    if pad_n or pad_k:
        values = torch.nn.functional.pad(values, (0, pad_k, 0, pad_n))
    grid = values.view(-1, TILE_N, (num_inputs + pad_k) // TILE_K, 8, 16)
    packed = torch.zeros(
        (grid.shape[0], TILE_N, grid.shape[2], 16), dtype=torch.int32, device=values.device
    )
    for nibble in range(8):
        packed |= grid[:, :, :, nibble].to(torch.int32) << (4 * nibble)
    return packed.transpose(1, 2).contiguous()


def join_scales(scales: Tensor, zeros: Tensor | None) -> Tensor:
    """[outputs, groups] each -> int32 [groups, outputs]: float32 scales whose last five bits are
    the zero point, 8 where there is none."""
    bits = scales.float().t().contiguous().view(torch.int32)
    # Rounded to what is left of the mantissa, so that the cut is not all in one direction.
    return ((bits + 16) & -32) | (8 if zeros is None else zeros.t().to(torch.int32))
