"""int4 weights times one row, on plain cores: two products at a time in float16, summed in float32
after every fourth.

In:  the tiles of int4_gemm.py, and the row as `prepare_row` leaves it. Out: [1, outputs]. A
     nibble's bits are, read as float16, the number q * 2^-24, so nothing is converted: masked,
     multiplied, added. Each tile of the row is scaled to where such products are largest; its sum
     takes care of the zero points, which are subtracted once per tile.

A prepared row holds, for tile t, place j (of four) and word i, inputs 16 * j + i and 64 + 16 * j +
i of the tile side by side: those that meet the nibbles j and j + 4 of word i. Tiles are prepared
each on its own, so that many programs share the work; what a norm needs of the whole row is left to
the product, as a sum of squares per tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from naiad.llm.kernels.int4_gemm import parted_scale
from naiad.llm.kernels.launch import IS_INTERPRETED, Kernel, next_power_of_2, wait_for_inputs

TILE_K = 128
TILES_PER_PROGRAM = 4
LARGEST = tl.constexpr(32000.0)
STEP = tl.constexpr(16777216.0)
"""2^24, the inverse of float16's least number."""


@dataclass(slots=True)
class PreparedRow:
    pairs: Tensor
    """int32 [inputs / 2], two float16 numbers each."""
    tiles: Tensor
    """float32 [3, tiles]: the factor of each tile, the sum of its pairs, and of what was normed the
    sum of squares."""
    num_inputs: int
    eps: float | None = None
    """Epsilon of the norm whose last factor is still to be multiplied in, or None."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((1, self.num_inputs))


DOT8_ASM = tl.constexpr("""{
.reg .b32 a, h;
.reg .b16 low, high;
.reg .f32 f, g;
and.b32 a, $1, 0x000F000F;
mul.rn.f16x2 h, a, $2;
shr.u32 a, $1, 4;
and.b32 a, a, 0x000F000F;
fma.rn.f16x2 h, a, $3, h;
shr.u32 a, $1, 8;
and.b32 a, a, 0x000F000F;
fma.rn.f16x2 h, a, $4, h;
shr.u32 a, $1, 12;
and.b32 a, a, 0x000F000F;
fma.rn.f16x2 h, a, $5, h;
mov.b32 {low, high}, h;
cvt.f32.f16 f, low;
cvt.f32.f16 g, high;
add.f32 $0, f, g;
}""")


@triton.jit
def _low(x):
    return x.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _pair(words, x, shift: tl.constexpr):
    q = words >> shift
    return (q & 15).to(tl.float32) * _low(x) + ((q >> 16) & 15).to(tl.float32) * _low(x >> 16)


@triton.jit
def _dot8(words, x0, x1, x2, x3, IS_INTERPRETED: tl.constexpr):
    """Per word, the sum of its eight products, times 2^-24."""
    if IS_INTERPRETED:
        total = (
            _pair(words, x0, 0) + _pair(words, x1, 4) + _pair(words, x2, 8) + _pair(words, x3, 12)
        )
        return total / STEP
    else:  # noqa: RET505 - Triton wants both branches of a constant
        return tl.inline_asm_elementwise(
            DOT8_ASM,
            "=f,r,r,r,r,r",
            [words, x0, x1, x2, x3],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def _int4_gemv_kernel(
    pairs_ptr, tiles_ptr, w_ptr, scales_ptr, bias_ptr, residual_ptr, out_ptr, num_outputs,
    num_tiles, group_tiles, eps,
    ROWS: tl.constexpr, TILES: tl.constexpr, NUM_STEPS: tl.constexpr, TILES_PAD: tl.constexpr,
    HAS_TAIL: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, IS_INTERPRETED: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < num_outputs
    tiles = tl.arange(0, TILES)
    words = tl.arange(0, 16)
    # Tiles come first among the axes: Triton then gives a thread the same inputs of several
    # outputs, which it reads once.
    strip = (rows // 16).to(tl.int64) * num_tiles
    at = (
        (tiles[:, None, None] + strip[None, :, None]) * 256
        + (rows % 16 * 16)[None, :, None]
        + words[None, None, :]
    )
    x_at = tiles[:, None, None] * 64 + words[None, None, :]
    strip_mask = (rows < (num_outputs + 15) // 16 * 16)[None, :, None]
    first_mask = strip_mask & (tiles < num_tiles)[:, None, None] if HAS_TAIL else strip_mask
    w = tl.load(w_ptr + at, mask=first_mask, other=0, eviction_policy="evict_first")
    wait_for_inputs(IS_DEPENDENT)
    acc = tl.zeros((TILES, ROWS, 16), tl.float32)
    shift = tl.zeros((TILES, ROWS), tl.float32)
    for step in tl.static_range(NUM_STEPS):
        here = step * TILES + tiles
        is_tile = here < num_tiles
        x_mask = is_tile[:, None, None] if HAS_TAIL else None
        x_other = 0 if HAS_TAIL else None
        x_from = pairs_ptr + step * TILES * 64 + x_at
        x0 = tl.load(x_from, mask=x_mask, other=x_other)
        x1 = tl.load(x_from + 16, mask=x_mask, other=x_other)
        x2 = tl.load(x_from + 32, mask=x_mask, other=x_other)
        x3 = tl.load(x_from + 48, mask=x_mask, other=x_other)
        scale_at = (here // group_tiles)[:, None] * num_outputs + rows[None, :]
        scale_mask = row_mask[None, :] & is_tile[:, None] if HAS_TAIL else row_mask[None, :]
        scale, zero = parted_scale(tl.load(scales_ptr + scale_at, mask=scale_mask, other=0))
        factor = tl.load(
            tiles_ptr + here, mask=is_tile if HAS_TAIL else None, other=0.0 if HAS_TAIL else None
        )
        sums = tl.load(
            tiles_ptr + num_tiles + here,
            mask=is_tile if HAS_TAIL else None,
            other=0.0 if HAS_TAIL else None,
        )
        scale = scale * factor[:, None]
        shift += scale * zero.to(tl.float32) * sums[:, None]
        dots = _dot8(
            w, tl.broadcast_to(x0, w.shape), tl.broadcast_to(x1, w.shape),
            tl.broadcast_to(x2, w.shape), tl.broadcast_to(x3, w.shape),
            IS_INTERPRETED,
        )  # fmt: skip
        acc += dots * scale[:, :, None]
        if step + 1 < NUM_STEPS:
            next_mask = (
                strip_mask & (here + TILES < num_tiles)[:, None, None] if HAS_TAIL else strip_mask
            )
            w = tl.load(
                w_ptr + at + (step + 1) * TILES * 256,
                mask=next_mask,
                other=0,
                eviction_policy="evict_first",
            )
    out = tl.sum(tl.sum(acc, axis=2), axis=0) * STEP - tl.sum(shift, axis=0)
    if HAS_NORM:
        every = tl.arange(0, TILES_PAD)
        squares = tl.load(tiles_ptr + 2 * num_tiles + every, mask=every < num_tiles, other=0.0)
        out = out * tl.rsqrt(tl.sum(squares, axis=0) / (num_tiles * 128) + eps)
    if HAS_BIAS:
        out += tl.load(bias_ptr + rows, mask=row_mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        out += tl.load(residual_ptr + rows, mask=row_mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows, out.to(out_ptr.dtype.element_ty), mask=row_mask)


@triton.jit
def _prepare_kernel(
    x_ptr, weight_ptr, pairs_ptr, tiles_ptr, width, num_tiles,
    HAS_NORM: tl.constexpr, IS_GATED: tl.constexpr, TILES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    tiles = tl.program_id(0) * TILES + tl.arange(0, TILES)
    places = tl.arange(0, 128)
    columns = tiles[:, None] * 128 + places[None, :]
    mask = columns < width
    weight = tl.full((TILES, 128), 1.0, tl.float32)
    if HAS_NORM:
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    wait_for_inputs(IS_DEPENDENT)
    x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    y = x * weight
    if IS_GATED:
        y = (
            x
            * tl.sigmoid(x)
            * tl.load(x_ptr + width + columns, mask=mask, other=0.0).to(tl.float32)
        )
    factor = tl.maximum(tl.max(tl.abs(y), axis=1), 1e-30) / LARGEST
    scaled = (y / factor[:, None]).to(tl.float16)
    at = (tiles[:, None] * 64 + places[None, :] % 64) * 2 + places[None, :] // 64
    tl.store(pairs_ptr + at, scaled, mask=mask)
    is_tile = tiles < num_tiles
    tl.store(tiles_ptr + tiles, factor, mask=is_tile)
    tl.store(tiles_ptr + num_tiles + tiles, tl.sum(scaled.to(tl.float32), axis=1), mask=is_tile)
    if HAS_NORM:
        tl.store(tiles_ptr + 2 * num_tiles + tiles, tl.sum(x * x, axis=1), mask=is_tile)


_launch_int4_gemv = Kernel(_int4_gemv_kernel)
_launch_prepare = Kernel(_prepare_kernel)


def int4_gemv(
    x: PreparedRow, tiles: Tensor, scales: Tensor, group: int, dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None, rows: int = 16, tiles_per_step: int = 8, num_warps: int = 4,
) -> Tensor:  # fmt: skip
    """A group is 128 inputs or a multiple of it."""
    num_outputs, num_tiles = scales.shape[1], tiles.shape[1]
    out = torch.empty((1, num_outputs), dtype=dtype, device=tiles.device)
    _launch_int4_gemv(
        (triton.cdiv(num_outputs, rows),),
        (
            x.pairs, x.tiles, tiles, scales, bias if bias is not None else scales,
            residual if residual is not None else scales, out,
        ),
        (num_outputs, num_tiles, group // TILE_K, 0.0 if x.eps is None else x.eps),
        ROWS=rows, TILES=tiles_per_step, NUM_STEPS=triton.cdiv(num_tiles, tiles_per_step),
        TILES_PAD=next_power_of_2(num_tiles),
        HAS_TAIL=num_tiles % tiles_per_step != 0,
        HAS_NORM=x.eps is not None, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
        IS_INTERPRETED=IS_INTERPRETED,
        num_warps=num_warps,
    )  # fmt: skip
    return out


def prepare_row(
    x: Tensor, norm: Tensor | None = None, eps: float | None = None, is_gated: bool = False
) -> PreparedRow:
    """x is [1, inputs]; with a norm's weights, normed; gated, [1, 2 * inputs], of which silu(gate)
    * up is prepared."""
    width = x.shape[1] // 2 if is_gated else x.shape[1]
    assert width % TILE_K == 0, "int4_products.py sends other widths elsewhere"
    num_tiles = width // TILE_K
    pairs = torch.empty(width // 2, dtype=torch.int32, device=x.device)
    tiles = torch.empty((3, num_tiles), dtype=torch.float32, device=x.device)
    _launch_prepare(
        (triton.cdiv(num_tiles, TILES_PER_PROGRAM),),
        (x, norm if norm is not None else x, pairs.view(torch.float16), tiles),
        (width, num_tiles), HAS_NORM=norm is not None, IS_GATED=is_gated, TILES=TILES_PER_PROGRAM,
        num_warps=4,
    )  # fmt: skip
    return PreparedRow(pairs, tiles, width, eps)
