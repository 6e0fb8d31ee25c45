"""The PyTorch backend for `model.pt2`, which also imports PyTorch's package for such files.

The template process imports it once, not every worker. It takes as long as importing torch itself,
so TorchScript models do not use this module.
"""

from __future__ import annotations

import torch.export.pt2_archive._package  # noqa: F401

from naiad.backends.torch.backend import PytorchBackend

__all__ = ["PytorchBackend"]
