"""What all launches share: programmatic dependent launch, and a short way from Python to the
device.

A kernel lets its dependents start as soon as it runs itself, and waits for the kernel before it as
late as it can: meanwhile it reads what no kernel of the step writes (weights, block tables,
positions, sampling rows). All else is read after `wait_for_inputs`. Every kernel waits, so when one
has waited, all before it are complete.

Triton looks at every argument of every launch, which takes longer than a small kernel runs.
`Kernel` does so once per kind of launch.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
USE_PDL = not IS_INTERPRETED and os.environ.get("NAIAD_PDL", "1") == "1"
SHORT_WAY_VERSIONS = ("3.6.",)
"""Triton versions whose compiled kernels are launched as `_launch_again` does it; with others every
launch goes the long way."""
USE_SHORT_WAY = (
    not IS_INTERPRETED
    and triton.__version__.startswith(SHORT_WAY_VERSIONS)
    and os.environ.get("NAIAD_SHORT_LAUNCH", "1") == "1"
)


class Kernel:
    """A Triton kernel whose arguments are tensors, then numbers, then constants.

    Tensors must start on 16-byte boundaries: all of the engine's do, as whole allocations or
    sections of the staging buffer.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._launches: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(
        self,
        grid: tuple[int, ...],
        tensors: tuple[Tensor, ...],
        numbers: tuple[int | float, ...],
        **constants: Any,
    ) -> None:
        """`constants` are the kernel's and `num_warps`, `num_stages`; always given in the same
        order."""
        key = (
            tensors[0].device,
            tuple([t.dtype for t in tensors]),
            tuple([_kind(n) for n in numbers]),
            tuple(constants.values()),
        )
        known = self._launches.get(key)
        if known is not None:
            _launch_again(known, grid, tensors, numbers)
            return
        options = {"launch_pdl": True} if USE_PDL else {}
        compiled = self._function[grid](
            *tensors, *numbers, **constants, IS_DEPENDENT=USE_PDL, **options
        )
        if USE_SHORT_WAY:
            given = constants | {"IS_DEPENDENT": USE_PDL}
            own = tuple(given[name] for name in self._function.arg_names if name in given)
            assert len(tensors) + len(numbers) + len(own) == len(self._function.arg_names), (
                "tensors, numbers, constants, in this order"
            )
            self._launches[key] = (compiled, own)


def _kind(number: int | float) -> int | None:
    """What Triton compiles a number's kernel for: whether it is 1, whether 16 divides it, whether
    32 bits hold it. Floats are all alike."""
    if isinstance(number, float):
        return None
    return (number % 16 == 0) + 2 * (number == 1) + 4 * (number >= 1 << 31)


def _launch_again(
    known: tuple[Any, tuple[Any, ...]],
    grid: tuple[int, ...],
    tensors: tuple[Tensor, ...],
    numbers: tuple[int | float, ...],
) -> None:
    compiled, constants = known
    stream = torch._C._cuda_getCurrentRawStream(tensors[0].device.index or 0)
    second = grid[1] if len(grid) > 1 else 1
    third = grid[2] if len(grid) > 2 else 1
    compiled.run(
        grid[0], second, third, stream, compiled.function, compiled.packed_metadata, None, None,
        None, *tensors, *numbers, *constants
    )  # fmt: skip


@triton.jit
def wait_for_inputs(IS_DEPENDENT: tl.constexpr):
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(pointers, IS_DEPENDENT: tl.constexpr):
    """Asks for the lines that `pointers` lie in to come into the L2 cache; nobody waits for
    them."""
    if IS_DEPENDENT:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def next_power_of_2(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def padded_head_dim(head_dim: int) -> int:
    """What the attention's products are padded to: the tensor cores' dot needs 16 at least."""
    return max(16, next_power_of_2(head_dim))
