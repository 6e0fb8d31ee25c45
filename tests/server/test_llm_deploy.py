"""Language models deployed through the console's API: from a hub that breaks off, does not have the
model or cannot be reached, onto a full disk, and on several ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
pytest.importorskip("huggingface_hub", reason="the hub's own client")

from tests.fakes.hub import Hub, run_hub
from tests.server.deploy_client import DeployClient
from tests.server.harness import Server, launch_naiad, naiad, process_name, process_tree
from tests.server.llm_checkpoint import write_checkpoint
from tests.server.llm_client import GREEDY, generate, worker_pid
from tests.server.test_faults_disk import IS_POSSIBLE

PARAMETERS = {
    "device": "cpu", "num_threads": "1", "kv_cache_bytes": str(1 << 24), "max_num_seqs": "8",
}  # fmt: skip
HUB = {"kind": "hub", "value": "org/tiny"}
SMALL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$1"
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny", max_positions=1024)


@pytest.fixture(scope="module")
def hub(checkpoint: Path) -> Iterator[Hub]:
    with run_hub({path.name: path.read_bytes() for path in checkpoint.iterdir()}) as running:
        yield running


def variables(home: Path, url: str) -> dict[str, str]:
    return {
        "HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0",
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hub")
    (made / "models").mkdir()
    return made


@pytest.fixture(scope="module")
def server(folder: Path, hub: Hub) -> Iterator[Server]:
    with naiad([str(folder / "models")], [], variables(folder / "home", hub.url)) as started:
        yield started


def deploy(server: Server, name: str, source: dict[str, str], **more: str) -> Any:
    parameters = {"checkpoint": source["value"], **PARAMETERS, **more}
    return DeployClient(server).deploy(name, source=source, backend="llm", parameters=parameters)


def test_a_model_of_the_hub_serves_although_a_transfer_broke_off(
    server: Server, hub: Hub, folder: Path
) -> None:
    found = DeployClient(server).call("POST", "inspect", {"source": HUB})[1]
    assert (found["name"], found["backend"]) == ("tiny", "llm")
    done = deploy(server, "tiny", HUB)
    assert done["state"] == "done", done
    assert hub.num_breaks == 0
    assert hub.fetched.count("model.safetensors") == 2
    assert generate(server, "tiny", text_input="The", max_tokens=4, **GREEDY)["text_output"]
    config = (folder / "models/tiny/config.pbtxt").read_text()
    assert 'string_value: "org/tiny"' in config
    # It is in the cache now: the hub is not needed for another load.
    fetched = len(hub.fetched)
    client = DeployClient(server)
    assert client.call("POST", "models/tiny/unload")[0] == 200
    assert client.call("POST", "models/tiny/load")[0] == 200
    assert len(hub.fetched) == fetched


def test_a_repository_that_the_hub_does_not_have_leaves_nothing(
    server: Server, folder: Path
) -> None:
    failed = deploy(server, "absent", {"kind": "hub", "value": "org/absent"})
    assert failed["state"] == "failed"
    assert "the hub has no repository 'org/absent', or it is private" in failed["error"]
    assert failed["is_restored"]
    assert not (folder / "models/absent").exists()


def test_a_hub_that_always_breaks_off_is_named(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    with (
        run_hub(files, num_breaks=1000) as hub,
        naiad([str(tmp_path / "models")], [], variables(tmp_path / "home", hub.url)) as server,
    ):
        failed = deploy(server, "tiny", HUB)
        assert failed["state"] == "failed"
        assert "downloading 'org/tiny' failed: " in failed["error"]
        assert not (tmp_path / "models/tiny").exists()
        hub.num_breaks = 0
        assert deploy(server, "tiny", HUB)["state"] == "done"


def test_a_hub_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    environment = variables(tmp_path / "home", "http://127.0.0.1:9")
    with naiad([str(tmp_path / "models")], [], environment) as server:
        failed = deploy(server, "tiny", HUB)
        assert (
            "'org/tiny' is not in the local cache and cannot be fetched from the hub"
            in (failed["error"])
        )
        assert not (tmp_path / "models/tiny").exists()


@pytest.mark.skipif(not IS_POSSIBLE, reason="needs the right to mount (root)")
def test_a_full_disk_is_said_and_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("models", "home"):
        (tmp_path / name).mkdir()
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    assert sum(map(len, files.values())) > 64 << 10
    prefix = ["unshare", "-m", "sh", "-ec", SMALL_DISK, "sh", str(tmp_path / "home")]
    with run_hub(files, num_breaks=0) as hub:
        environment = variables(tmp_path / "home", hub.url)
        server = launch_naiad([str(tmp_path / "models")], [], environment, prefix)
        try:
            failed = deploy(server.wait_started(), "tiny", HUB)
            assert failed["state"] == "failed"
            assert "No space left on device" in failed["error"]
            assert not (tmp_path / "models/tiny").exists()
        finally:
            server.stop()


def test_several_ranks_share_a_model(server: Server, checkpoint: Path) -> None:
    source = {"kind": "checkpoint", "value": str(checkpoint)}
    for name, ranks in (("one", "1"), ("two", "2")):
        done = deploy(server, name, source, tensor_parallel_size=ranks, dtype="float32")
        assert done["state"] == "done", done
    texts = [
        generate(server, name, text_input="The", max_tokens=8, **GREEDY)["text_output"]
        for name in ("one", "two")
    ]
    assert texts[0] == texts[1]
    names = [process_name(pid) for pid in process_tree(worker_pid(server, "two"))]
    assert names.count("llm-rank") == 1
    config = json.loads(server.get("/v2/models/two/config")[1])
    assert config["parameters"]["tensor_parallel_size"]["string_value"] == "2"
    failed = deploy(server, "three", source, tensor_parallel_size="3")
    assert failed["state"] == "failed"
    assert "tensor_parallel_size" in failed["error"]
