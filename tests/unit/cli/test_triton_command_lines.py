"""Command lines of public charts, runtimes and compose files for Triton start our server.

Each is the list of arguments that its container gets. The source is named with its repository and
file. The flags are the source's; where a template or a commented line leaves a value open (buckets,
paths, log level, control mode), the value is ours.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import naiad
from naiad.cli.main import run
from naiad.cli.serve import ServeCommand, expand_abbreviations
from naiad.settings import Settings
from naiad.settings.resolve import TRITONSERVER_DEFAULTS

SERVER = "triton-inference-server/server"
COMMAND_LINES: list[tuple[str, str]] = [
    (f"{SERVER} deploy/k8s-onprem/values.yaml", "tritonserver --model-repository=/models"),
    (
        f"{SERVER} deploy/aws/templates/deployment.yaml",
        "tritonserver --model-store=s3://triton-inference-server-repository/model_repository"
        " --model-control-mode=poll --repository-poll-secs=5",
    ),
    (
        f"{SERVER} deploy/gcp/templates/deployment.yaml",
        "tritonserver --model-store=gs://triton-inference-server-repository/model_repository",
    ),
    (
        f"{SERVER} deploy/oci/templates/deployment.yaml",
        "tritonserver --model-store=s3://https://host:443/bucket/models"
        " --model-control-mode=poll --repository-poll-secs=5",
    ),
    (
        f"{SERVER} deploy/gke-marketplace-app/server-deployer/chart/triton",
        "tritonserver --model-store=gs://bucket/models --strict-model-config=False"
        " --log-verbose=0 --allow-gpu-metrics=True",
    ),
    (
        f"{SERVER} deploy/fleetcommand/values.yaml",
        "tritonserver --model-repository=s3://triton-inference-server-repository/model_repository"
        " --model-control-mode=explicit",
    ),
    (
        f"{SERVER} README.md",
        "tritonserver --model-repository=/models --model-control-mode explicit"
        " --load-model densenet_onnx",
    ),
    (
        f"{SERVER} docs/user_guide/model_repository.md",
        "tritonserver --model-repository=as://account_name/container_name/path/to/repository",
    ),
    (
        "kserve/kserve config/runtimes/kserve-tritonserver.yaml",
        "tritonserver --model-store=/mnt/models --grpc-port=9000 --http-port=8080"
        " --allow-grpc=true --allow-http=true",
    ),
    (
        "daxiongshu/triton_amex docker.sh",
        "tritonserver --model-repository=/models --exit-on-error=false",
    ),
    (
        "tienluongngoc/yolov5_triton_inference_server scripts/yolov5/run_triton.sh",
        "tritonserver --model-repository=/models --strict-model-config=false --log-verbose 1",
    ),
    # Compose files found by search, whose index does not name their repositories.
    (
        "a compose file, 22.08",
        "tritonserver --model-repository=/models --model-control-mode=explicit --load-model=*",
    ),
    ("a compose file with shm_size", "tritonserver --model-repository=/models --log-info=1"),
    (
        "a compose file with ipc: host",
        "tritonserver --model-repository=/models --allow-gpu-metrics=false --log-verbose=1",
    ),
    (
        "a Deployment that calls bin/tritonserver",
        "bin/tritonserver --model-repository /models --repository-poll-secs 30",
    ),
]


class FakeServer(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("naiad.server")
        self.started: list[Settings] = []

    def run(self, settings: Settings) -> int:
        self.started.append(settings)
        return 0


@pytest.mark.parametrize(("source", "line"), COMMAND_LINES, ids=[row[0] for row in COMMAND_LINES])
def test_starts_the_server(
    source: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeServer()
    monkeypatch.setitem(sys.modules, "naiad.server", fake)
    monkeypatch.setattr(naiad, "server", fake, raising=False)
    program, *arguments = line.split()
    assert Path(program).name == "tritonserver"
    command = ServeCommand("tritonserver", TRITONSERVER_DEFAULTS, "")
    assert run(command, "tritonserver", expand_abbreviations(arguments)) == 0, capsys.readouterr()
    (settings,) = fake.started
    assert settings.model_repository
    # A container's ports must be reachable from outside of it.
    assert settings.http_address == settings.grpc_address == "0.0.0.0"
    if "poll-secs=5" in line:
        assert (settings.repository_poll_secs, str(settings.model_control_mode)) == (5, "poll")
