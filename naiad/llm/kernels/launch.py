"""What all launches share: programmatic dependent launch, on unless the kernels run in Triton's interpreter.

A kernel lets its dependents start as soon as it runs itself, and waits for the kernel before it as late as it can: meanwhile it reads what
no kernel of the step writes (weights, block tables, positions, sampling rows). All else is read after `wait_for_inputs`. Every kernel
waits, so when one has waited, all before it are complete.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
USE_PDL = not IS_INTERPRETED and os.environ.get("NAIAD_PDL", "1") == "1"
PDL: dict[str, bool] = {"launch_pdl": True} if USE_PDL else {}


@triton.jit
def wait_for_inputs(IS_DEPENDENT: tl.constexpr):
    if IS_DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(pointers, IS_DEPENDENT: tl.constexpr):
    """Asks for the lines that `pointers` lie in to come into the L2 cache; nobody waits for them."""
    if IS_DEPENDENT:
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)


def next_power_of_2(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()
