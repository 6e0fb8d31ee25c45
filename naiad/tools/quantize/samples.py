"""What a matrix was given during calibration: some rows, the mean size of each input, and, for
GPTQ, the sum of outer products."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from naiad.errors import invalid_arg

MAX_ROWS = 512


@dataclass(slots=True)
class Samples:
    name: str
    has_hessian: bool
    rows: Tensor = field(default_factory=lambda: torch.empty(0))
    mean_abs: Tensor = field(default_factory=lambda: torch.empty(0))
    hessian: Tensor = field(default_factory=lambda: torch.empty(0))
    num_rows: int = 0

    def add(self, x: Tensor) -> None:
        """x [..., inputs]. Raises NaiadError where it has numbers that are not finite."""
        flat = x.reshape(-1, x.shape[-1])
        if not bool(torch.isfinite(flat).all()):
            advice = "expected finite ones: try dtype bfloat16, or another calib_dataset"
            raise invalid_arg(
                f"calibration gave '{self.name}' inputs that are no numbers, {advice}"
            )
        if self.num_rows == 0:
            self.rows = flat[:0]
            self.mean_abs = torch.zeros(flat.shape[1], device=flat.device)
            if self.has_hessian:
                self.hessian = torch.zeros((flat.shape[1], flat.shape[1]), device=flat.device)
        total = self.num_rows + flat.shape[0]
        self.mean_abs += (flat.float().abs().sum(0) - self.mean_abs * flat.shape[0]) / total
        if self.has_hessian:
            wide = flat.float()
            self.hessian += wide.t() @ wide
        if self.rows.shape[0] < MAX_ROWS:
            stride = max(1, flat.shape[0] // MAX_ROWS)
            self.rows = torch.cat((self.rows, flat[::stride][: MAX_ROWS - self.rows.shape[0]]))
        self.num_rows = total

    def divide(self, scales: Tensor) -> None:
        """The inputs were scaled down by so much."""
        self.rows = (self.rows.float() / scales).to(self.rows.dtype)
        self.mean_abs = self.mean_abs / scales


class LayerSamples:
    """The samples of a layer's matrices. Matrices that are given the same tensor, such as q, k and
    v, share one: it is summed up once, and what changes their input changes it for all of them."""

    def __init__(self, has_hessian: bool) -> None:
        self._has_hessian = has_hessian
        self._last: tuple[Tensor, str] | None = None
        self.by_name: dict[str, Samples] = {}

    def add(self, name: str, x: Tensor) -> None:
        """Called for each matrix of a layer in the order of the computation."""
        leader = self._last[1] if self._last is not None and self._last[0] is x else name
        self._last = (x, leader)
        if name not in self.by_name:
            self.by_name[name] = self.by_name.get(leader) or Samples(name, self._has_hessian)
        if leader == name:
            self.by_name[name].add(x)

    def groups(self) -> list[list[str]]:
        """Returns the names of the matrices that share samples."""
        found: dict[int, list[str]] = {}
        for name, samples in self.by_name.items():
            found.setdefault(id(samples), []).append(name)
        return list(found.values())
