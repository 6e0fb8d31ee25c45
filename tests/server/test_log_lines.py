"""Lines of Triton's log that tools look for. Clients see no paths."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, launch_naiad
from tests.server.model_folder import CONFIG, ENSEMBLE, write_model

UNREADABLE = {
    "negative": ("max_inflight_requests: -5", "Expected integer, got: -"),
    "text": (
        'max_inflight_requests: "invalid_value"',
        'Expected integer, got: "invalid_value"',
    ),
    "large": ("max_inflight_requests: 12345678901", "Integer out of range (12345678901)"),
    "unknown": (
        "flavour: 3",
        'Message type "inference.ModelEnsembling" has no field named "flavour".',
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("lines")
    group = "instance_group [ { kind: KIND_CPU } ]"
    write_model(repository, "good", "good", extra=group)
    write_model(repository, "exits", "exits", extra=group, initialize="os._exit(3)")
    (repository / "without_file" / "1").mkdir(parents=True)
    (repository / "without_file" / "config.pbtxt").write_text(CONFIG.format(extra=""))
    for name, (field, _) in {"limited": ("max_inflight_requests: 4", ""), **UNREADABLE}.items():
        (repository / name / "1").mkdir(parents=True)
        text = ENSEMBLE.format(part="good").replace("{ step", f"{{ {field}\nstep")
        (repository / name / "config.pbtxt").write_text(text)
    flags = ["--exit-on-error=false", "--strict-readiness=false", "--log-verbose=1"]
    server = launch_naiad([str(repository)], [*flags, "--strict-model-config=false"])
    try:
        server.wait_started()
        yield server
    finally:
        server.stop()


def lines_with(server: Server, text: str) -> list[str]:
    return [line for line in server.lines if text in line]


@pytest.mark.parametrize("name", UNREADABLE)
def test_protobufs_own_message(server: Server, name: str) -> None:
    _, message = UNREADABLE[name]
    (line,) = [line for line in lines_with(server, message) if "Error parsing" in line]
    assert re.search(r"Error parsing text-format inference\.ModelConfig: \d+:\d+: ", line)
    index = json.loads(server.post("/v2/repository/index", {})[1])
    (reason,) = [row.get("reason", "") for row in index if row["name"] == name]
    assert "/" not in reason.replace(f"{name}/config.pbtxt", "")


def test_the_limit_of_an_ensemble(server: Server) -> None:
    assert lines_with(server, "Ensemble model 'limited' configured with max_inflight_requests: 4")


def test_a_model_that_ends_while_it_loads(server: Server) -> None:
    assert lines_with(server, "Stub process 'exits_0_0' is not healthy.")


def test_a_model_without_its_file(server: Server) -> None:
    message = "Failed to preinitialize Python stub: Python model file not found in '"
    (line,) = lines_with(server, message)
    path = line.split(message)[1].split("'")[0]
    assert Path(path).is_absolute()
    assert path.endswith("without_file/1/model.py")
    index = server.post("/v2/repository/index", {})[1]
    assert path.encode() not in (index if isinstance(index, bytes) else index.encode())


def test_a_deprecated_flag(server: Server) -> None:
    assert lines_with(
        server,
        "Warning: '--strict-model-config' has been deprecated! Please use "
        "'--disable-auto-complete-config' instead.",
    )


def test_a_worker_that_dies(server: Server) -> None:
    status, body = server.post(
        "/v2/models/good/infer",
        {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]},
    )
    assert status == 200, body
    pid = int(json.loads(body)["outputs"][0]["data"][0].split()[1])
    os.kill(pid, signal.SIGKILL)
    server.wait_for_line(r"Stub process 'good_0_0' is not healthy\. Its worker")
