"""What the runner promises to those who reuse its buffers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")

import torch

from naiad.llm.accelerator import accelerator_of
from naiad.llm.step.runner import Runner
from naiad.llm.token_scheduler import ScheduledRow, StepPlan


class FakeEvent:
    did: list[str]

    def record(self) -> None:
        self.did.append("record")

    def synchronize(self) -> None:
        self.did.append("wait")


def test_waits_for_a_step_without_a_sampled_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the host would run ahead of a prompt in many pieces, and overwrite staging buffers that
    the device has yet to read."""
    FakeEvent.did = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    runner: Any = Runner.__new__(Runner)
    runner.device = torch.device("cuda", 0)
    runner._accelerator = accelerator_of(runner.device)
    piece: Any = ScheduledRow(None, 0, 64, False)  # type: ignore[arg-type]
    nothing = torch.empty(0, dtype=torch.int32)
    launched = runner._read_back(StepPlan([piece], 0, 64), nothing, nothing, [])
    assert launched.wait() == []
    assert FakeEvent.did == ["record", "wait"]
