"""No error on any route or RPC shows a path, an address, a region or a traceback of the server."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import naiad as package
from naiad.pb.grpc_service_pb2 import ModelInferRequest, RepositoryModelLoadRequest
from tests import entrances
from tests.server.harness import Server, naiad

BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b'{"inputs": null}',
    b'{"inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}]}',
    b'{"inputs": [{"name": "A", "datatype": "FP32", "shape": [1],'
    b' "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]}',
    b'{"key": "/naiad", "offset": 0, "byte_size": 4}',
    b'{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4}',
    b'{"parameters": {"config": "{}", "file:1/model.py": "aW1wb3J0IG5vdGhpbmc="}}',
    b'{"parameters": {"config": "{\\"backend\\": \\"python\\"}"}}',
    b'{"log_file": "/tmp/x"}',
    b'{"trace_file": "/tmp/x", "trace_level": ["WHAT"]}',
    b'{"model": "request_info", "messages": [{"role": "user", "content": "a"}]}',
    b"\xff\xfe" * 100,
)
MESSAGES = (
    b"",
    b"\xff" * 20,
    ModelInferRequest(model_name="request_info").SerializeToString(),
    ModelInferRequest(model_name="failing").SerializeToString(),
    RepositoryModelLoadRequest(model_name="../x").SerializeToString(),
)
INTERNALS = re.compile(r"Traceback|0x[0-9a-f]{6,}|memfd|/dev/shm|psm_|\.py\b|File \"|/proc/|/tmp/")


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    flags = ["--model-control-mode=explicit", "--allow-client-shm=true", "--load-model=*"]
    with naiad([str(repositories / "main")], flags) as one:
        yield one


def check(text: str, what: str, own: str = "") -> None:
    """`own` is what the client has sent: an error may repeat it."""
    folders = {str(Path(package.__file__).parent), str(Path(__file__).parents[1]), str(Path.home())}
    assert not any(folder in text for folder in folders), (what, text)
    for found in INTERNALS.findall(text):
        assert found in own, (what, text)


def test_no_http_error_shows_internals(server: Server) -> None:
    num_errors = 0
    for entrance in entrances.http_entrances():
        for body in BODIES if entrance.method != "GET" else BODIES[:1]:
            request = urllib.request.Request(
                f"http://{server.http}{entrance.path}",
                body if entrance.method != "GET" else None,
                {"Content-Type": "application/json"},
                method=entrance.method,
            )
            status, response = server.fetch(request)
            if status >= 400:
                num_errors += 1
                check(response.decode(), f"{entrance.method} {entrance.path} {body!r}", repr(body))
    assert num_errors > 200
    assert server.is_ready()


def test_no_grpc_error_shows_internals(server: Server) -> None:
    num_errors = 0
    with grpc.insecure_channel(server.grpc) as channel:
        for entrance in entrances.rpc_entrances():
            for message in MESSAGES:
                call = channel.stream_stream(entrance.path, None, None)
                try:
                    for _ in call(iter([message]), timeout=2):
                        pass
                except grpc.RpcError as error:
                    num_errors += 1
                    check(error.details() or "", f"{entrance.path} {message!r}", repr(message))
    assert num_errors > 40
    assert server.is_ready()


def test_no_failed_load_shows_internals(tmp_path: Path) -> None:
    """The reason in the index is for clients; the path of the file is for the log."""
    for name, code in {
        "syntax": "x = (",
        "import": "import nothing_of_this_name",
        "empty": "",
    }.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text('backend: "python"')
        (tmp_path / name / "1" / "model.py").write_text(code)
    with naiad([str(tmp_path)], ["--model-control-mode=explicit"]) as server:
        for name in ("syntax", "import", "empty", "nothing"):
            status, body = server.post(f"/v2/repository/models/{name}/load", b"")
            assert status >= 400
            assert str(tmp_path) not in body.decode()
            check(body.decode().replace("model.py", ""), name)
        index = server.post("/v2/repository/index", b"")[1].decode()
        assert str(tmp_path) not in index
        check(index.replace("model.py", ""), "index")
