"""What `naiad init` writes is served as it is, and the start ends with addresses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naiad.repository.deploy.starter import init_model
from tests.server.harness import naiad

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def test_the_written_models_respond_to_their_requests(tmp_path: Path) -> None:
    for kind in ("python", "onnx"):
        init_model(kind, tmp_path, kind, None)
    with naiad([str(tmp_path)]) as server:
        for kind in ("python", "onnx"):
            request = json.loads((tmp_path / kind / "request.json").read_text())
            status, body = server.post(f"/v2/models/{kind}/infer", request)
            assert status == 200, body
            assert json.loads(body)["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]
        server.wait_for_line(rf"\| +\| \S*naiad perf -m onnx -u {server.http} ")
        text = "\n".join(server.lines)
    assert f"| HTTP    | http://{server.http} " in text
    assert f"| gRPC    | {server.grpc} " in text
    assert f"| Try     | curl -s http://{server.http}/v2/models/onnx " in text
