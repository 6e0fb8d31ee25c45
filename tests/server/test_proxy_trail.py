"""A server behind a proxy that it trusts: the audit log names the client and the request's id."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import tritonclient.grpc as grpc_client

from tests.server.gates import eventually
from tests.server.harness import naiad
from tests.server.test_keys import KeyCommand

EXAMPLES = str(Path(__file__).parents[2] / "examples" / "repository")
BODY = {"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]}


@pytest.mark.parametrize("frontends", [1, 2])
def test_the_audit_log_names_the_client_and_the_id(tmp_path: Path, frontends: int) -> None:
    keys = KeyCommand(tmp_path / "keys.json")
    key = {"Authorization": f"Bearer {keys.create('one')}"}
    log = tmp_path / "audit.jsonl"
    flags = [
        "--model-control-mode=explicit",
        "--load-model=add_sub",
        f"--api-key-file={keys.path}",
        f"--audit-log={log}",
        "--trusted-proxy=127.0.0.1",
        f"--frontend-processes={frontends}",
    ]
    with naiad([EXAMPLES], flags) as server:
        path = f"http://{server.http}/v2/models/add_sub"
        trail = {"X-Forwarded-For": "1.2.3.4, 203.0.113.9", "X-Request-Id": "http-1"}
        with urlopen(Request(path, headers={**key, **trail}), timeout=60) as response:
            assert response.headers["X-Request-Id"] == "http-1"
        infer = Request(f"{path}/infer", b"{}", {**key, **trail, "X-Request-Id": "infer-1"})
        assert server.fetch(infer)[0] == 400
        wrong = {"Authorization": "Bearer x", **trail, "X-Request-Id": "wrong-1"}
        assert server.fetch(Request(path, headers=wrong))[0] == 401
        with grpc_client.InferenceServerClient(server.grpc) as client:
            fields = {"forwarded": "for=203.0.113.10", "x-request-id": "grpc-1"}
            client.get_model_metadata(
                "add_sub", headers={**fields, "authorization": key["Authorization"]}
            )

        def lines() -> dict[str, str]:
            read = [json.loads(line) for line in log.read_text().splitlines()]
            return {line.get("request_id", ""): line["address"] for line in read}

        expected = {
            "http-1": "203.0.113.9",
            "infer-1": "203.0.113.9",
            "wrong-1": "203.0.113.9",
            "grpc-1": "203.0.113.10",
        }
        eventually(lambda: lines() == expected, "the lines of the audit log")
