"""Modules for the tests of the PyTorch backend. Imported only if torch is installed."""

from __future__ import annotations

from typing import Dict, List, Tuple  # noqa: UP035 - TorchScript reads these

import torch


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(
        self, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        y = self.layer(x)
        if bias is not None:
            y = y + bias
        return y, y.sum(1)


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class Shout(torch.nn.Module):
    def forward(self, words: List[str]) -> Tuple[List[str], torch.Tensor]:  # noqa: UP006
        return [word + "!" for word in words], torch.tensor([len(word) for word in words])


class Keyed(torch.nn.Module):
    def forward(self, tensors: Dict[str, torch.Tensor]) -> torch.Tensor:  # noqa: UP006
        return tensors["p"] + tensors["q"]


class Keys(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> Dict[str, torch.Tensor]:  # noqa: UP006
        return {"double": 2 * x, "scaled": x * scale}


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.arange(5.0) * 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.index_select(self.table, 0, x.flatten()).reshape(x.shape)


class Conv(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.out = torch.nn.Linear(4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(image).mean([2, 3]))
