"""The PyTorch backend for `model.pt2`, with what such files need imported beforehand: in the
template process, once, not in every worker.

It costs as long again as importing torch itself, which models that are TorchScript are spared.
"""

from __future__ import annotations

import torch.export.pt2_archive._package  # noqa: F401

from naiad.backends.torch.backend import PytorchBackend

__all__ = ["PytorchBackend"]
