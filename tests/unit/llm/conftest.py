"""One thread: the tests' tensors are tiny, and the machine is shared."""

from __future__ import annotations

try:
    import torch
except ImportError:  # each module then skips itself, with a reason
    pass
else:
    torch.set_num_threads(1)
