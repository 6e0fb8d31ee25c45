"""Devices by name, with a stand-in that a plugin brings: it is not CUDA, and computes in the host's
memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="makes the checkpoint")

from naiad.errors import NaiadError
from naiad.llm import accelerator as module
from naiad.llm.accelerator import Accelerator, choose_accelerator, instance_device
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from tests.unit.llm.checkpoints import save_checkpoint
from tests.unit.llm.engines import request, run

STAND_IN = """
import torch
from naiad.llm.accelerator import Accelerator


class StandIn(Accelerator):
    selected = []
    num_emptied = 0
    is_host = False

    def __init__(self):
        super().__init__("standin", "cpu")

    def device_count(self):
        return 8

    def torch_device(self, index):
        return torch.device("cpu")

    def select(self, index):
        self.selected.append(index)

    def empty_cache(self):
        StandIn.num_emptied += 1

    def memory(self, device):
        return 4 << 30, 4 << 30
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files that pip would install for a plugin."""
    info = tmp_path / "standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[naiad.accelerators]\nstandin = standin_plugin:StandIn\n"
    )
    (tmp_path / "standin_plugin.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "_in_use", {})
    yield
    sys.modules.pop("standin_plugin", None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint("llama2", folder)
    return folder


def outputs(folder: Path, device: str) -> list[list[int]]:
    settings = EngineSettings(
        device=device, dtype="float32", max_num_batched_tokens=24, block_size=4, max_num_seqs=5,
        num_kv_blocks=None if device.startswith("standin") else 30,
    )  # fmt: skip
    engine = load_engine(folder, settings)
    requests = [
        request(str(number), [3 + number, 4, 5, 6, 7], max_tokens=12, temperature=0.0, logprobs=2)
        for number in range(7)
    ]
    return [run(engine, requests)[str(number), 0].tokens for number in range(7)]


@pytest.mark.usefixtures("stand_in")
def test_the_engine_runs_on_a_device_of_a_plugin(checkpoint: Path) -> None:
    expected = outputs(checkpoint, "cpu")
    assert outputs(checkpoint, "standin:5") == expected
    plugin = sys.modules["standin_plugin"]
    # The thread that steps selects it again, by the number of torch's device, which a CPU lacks.
    assert set(plugin.StandIn.selected) == {5, 0}
    assert plugin.StandIn.num_emptied == 1, "before the KV cache is sized from its memory"


@pytest.mark.usefixtures("stand_in")
def test_each_instance_has_its_own_device() -> None:
    assert [instance_device("standin", number) for number in (0, 7, 9)] == [
        "standin:0",
        "standin:7",
        "standin:1",
    ]
    assert instance_device("standin:2", 5) == "standin:2"
    assert instance_device("cuda", 5) == "cuda"
    assert instance_device("auto", 5) == "auto"


@pytest.mark.usefixtures("stand_in")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(NaiadError, match="torch sees 8 devices of the kind 'standin'"):
        choose_accelerator("standin:8")
    with pytest.raises(NaiadError, match=r"expected one of auto, cpu, .*, mps, standin, or"):
        choose_accelerator("nothing")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hpu", "needs the package 'habana_frameworks.torch.core'"),
        ("npu:1", "needs the package 'torch_npu'"),
        ("xpu", "torch sees 0 devices of the kind 'xpu'"),
        ("mps", "torch sees 0 devices of the kind 'mps'"),
        ("rocm", "torch sees 0 GPUs"),
        ("xpu:-1", "device is 'xpu:-1', expected one of"),
        ("cuda:1:2", "device is 'cuda:1:2', expected one of"),
    ],
)
def test_known_devices_say_what_they_lack(name: str, message: str) -> None:
    if torch.cuda.is_available() and name == "rocm":
        pytest.skip("torch sees a GPU")
    with pytest.raises(NaiadError) as caught:
        choose_accelerator(name)
    assert message in caught.value.message


def test_auto_is_the_cpu_where_there_is_nothing_else() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    accelerator, device = choose_accelerator("auto")
    assert (accelerator.name, device.type) == ("cpu", "cpu")
    assert Accelerator("other").device_count() == 0
