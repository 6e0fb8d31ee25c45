"""Which device `device` names."""

from __future__ import annotations

import pytest

from naiad.errors import Code, NaiadError
from naiad.llm.engine_settings import EngineSettings

torch = pytest.importorskip("torch", reason="language models need torch")


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_the_cpu_may_have_a_number(name: str) -> None:
    from naiad.llm.start.load import choose_device

    assert choose_device(EngineSettings(device=name)) == torch.device("cpu")


@pytest.mark.parametrize("name", ["nonsense", "cpu:x", "meta", "cuda:999"])
def test_other_devices_are_refused_by_name(name: str) -> None:
    from naiad.llm.start.load import choose_device

    with pytest.raises(NaiadError, match=f"^device is '{name}'") as caught:
        choose_device(EngineSettings(device=name))
    assert caught.value.code is Code.INVALID_ARG
