"""API keys on a real server, with the stock clients and `naiad key`."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.gates import eventually
from tests.server.harness import Server, naiad, naiad_command, naiad_environment


class KeyCommand:
    """`naiad key` with one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            naiad_command("key", *arguments, "--api-key-file", str(self.path)),
            env=naiad_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def create(self, name: str, *options: str) -> str:
        return self.run("create", name, *options)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyCommand:
    command = KeyCommand(tmp_path_factory.mktemp("keys") / "keys.json")
    command.create("first")
    return command


@pytest.fixture(scope="module")
def server(
    keys: KeyCommand, repositories: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    for name in ("add_sub", "identity_fp32"):
        (folder / name).symlink_to(repositories / "main" / name)
    flags = ["--api-key-file", str(keys.path), "--model-control-mode=explicit", "--load-model=*"]
    with naiad([str(folder)], flags) as one:
        yield one


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def status_of(server: Server, path: str, key: str) -> int:
    request = urllib.request.Request(f"http://{server.http}{path}", headers=bearer(key))
    return server.fetch(request)[0]


def known(server: Server, key: str) -> str:
    """Waits until the server has read the key."""
    eventually(lambda: status_of(server, "/v2", key) == 200, "the server knows the key")
    return key


def inputs(module: object) -> list[object]:
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "FP32")  # type: ignore[attr-defined]
        tensor.set_data_from_numpy(np.arange(16, dtype=np.float32).reshape(1, 16))
        tensors.append(tensor)
    return tensors


def test_tritonclient_sends_a_key_over_http_and_grpc(server: Server, keys: KeyCommand) -> None:
    key = known(server, keys.create("triton"))
    for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
        with module.InferenceServerClient(address) as client:
            result = client.infer("add_sub", inputs(module), headers=bearer(key))
            assert result.as_numpy("OUTPUT0").ravel().tolist() == list(range(0, 32, 2))
            with pytest.raises(InferenceServerException, match="an API key is required"):
                client.infer("add_sub", inputs(module))
            with pytest.raises(InferenceServerException, match="does not have the scope"):
                client.load_model("add_sub", headers=bearer(key))
            assert client.is_server_live()


def test_a_key_sees_only_its_models(server: Server, keys: KeyCommand) -> None:
    key = known(server, keys.create("some", "--models", "identity*"))
    with http_client.InferenceServerClient(server.http) as client:
        with pytest.raises(InferenceServerException, match="unknown model: 'add_sub'"):
            client.infer("add_sub", inputs(http_client), headers=bearer(key))
        statistics = client.get_inference_statistics(headers=bearer(key))
        assert [row["name"] for row in statistics["model_stats"]] == ["identity_fp32"]


def test_a_revoked_key_fails_within_a_second_under_load(server: Server, keys: KeyCommand) -> None:
    """Sixteen connections repeat one request, on the fast path, while the key is revoked."""
    key = known(server, keys.create("loaded"))
    last_success = [0.0] * 16
    errors: list[str] = []
    is_over = threading.Event()

    def send(index: int) -> None:
        module, address = (http_client, server.http) if index % 2 else (grpc_client, server.grpc)
        with module.InferenceServerClient(address) as client:
            while not is_over.is_set():
                try:
                    client.infer("add_sub", inputs(module), headers=bearer(key))
                except InferenceServerException as error:
                    errors.append(str(error))
                    return
                last_success[index] = time.monotonic()

    threads = [threading.Thread(target=send, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    eventually(lambda: all(last_success), "a response on every connection")
    keys.run("revoke", "loaded")
    revoked_s = time.monotonic()
    for thread in threads:
        thread.join(20)
    is_over.set()
    assert not any(thread.is_alive() for thread in threads)
    assert len([error for error in errors if "was revoked" in error]) == 16
    assert max(last_success) - revoked_s < 1.0


def test_a_broken_file_keeps_the_keys(server: Server, keys: KeyCommand) -> None:
    key = known(server, keys.create("steady"))
    good = keys.path.read_bytes()
    keys.path.write_bytes(b"not json")
    server.wait_until(
        lambda lines: any("the API keys stay as they were" in line for line in lines), "the log"
    )
    assert status_of(server, "/v2", key) == 200
    keys.path.write_bytes(good)
    known(server, keys.create("after"))


def test_no_secret_is_in_the_log(server: Server, keys: KeyCommand) -> None:
    key = known(server, keys.create("quiet"))
    status_of(server, "/v2/nothing", key)
    assert not [line for line in server.lines if key[18:] in line or "sk-naiad-" in line]
    assert key[18:] not in keys.path.read_text()
    assert {entry["name"] for entry in json.loads(keys.run("list", "--json"))} >= {"quiet"}


def test_one_key_without_a_file(repositories: Path, tmp_path: Path) -> None:
    (tmp_path / "add_sub").symlink_to(repositories / "main" / "add_sub")
    with naiad([str(tmp_path)], [], environment={"NAIAD_API_KEY": "my own text"}) as one:
        assert status_of(one, "/v2", "my own text") == 200
        assert status_of(one, "/v2", "another") == 401
        assert one.get("/v2/health/ready")[0] == 200


def test_a_page_cannot_load_code(repositories: Path, tmp_path: Path) -> None:
    (tmp_path / "add_sub").symlink_to(repositories / "main" / "add_sub")
    with naiad([str(tmp_path)], ["--model-control-mode=explicit"]) as one:
        url = f"http://{one.http}/v2/repository/models/add_sub/load"

        def load(**headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return one.fetch(urllib.request.Request(url, b"{}", named, method="POST"))[0]

        assert load(Content_Type="text/plain", Origin="http://evil.example") == 403
        assert load(Content_Type="text/plain") == 403
        assert load(Content_Type="application/json", Origin="null") == 403
        assert load(Content_Type="application/json", Host="evil.example") == 403
        assert load(Content_Type="application/x-www-form-urlencoded") == 200


@pytest.mark.parametrize("field", ["Via", "x-forwarded-for"])
def test_files_do_not_come_through_a_proxy(repositories: Path, tmp_path: Path, field: str) -> None:
    """Without keys, nobody knows whose request a proxy of the server's user passes on."""
    (tmp_path / "add_sub").symlink_to(repositories / "main" / "add_sub")
    code = base64.b64encode(b"raise KeyError").decode()
    load = {"parameters": {"config": "{}", "file:1/model.py": code}}
    with naiad([str(tmp_path)], ["--model-control-mode=explicit"]) as one:
        request = urllib.request.Request(
            f"http://{one.http}/v2/repository/models/evil/load",
            json.dumps(load).encode(),
            {field: "203.0.113.9", "Content-Type": "application/json"},
        )
        status, body = one.fetch(request)
        assert (status, b"through a proxy" in body) == (403, True), body
        with grpc_client.InferenceServerClient(one.grpc) as client:
            with pytest.raises(InferenceServerException, match="through a proxy"):
                client.load_model(
                    "evil",
                    {field.lower(): "203.0.113.9"},
                    "{}",
                    {"file:1/model.py": b"raise KeyError"},
                )
            client.load_model("add_sub", {field.lower(): "203.0.113.9"})
            assert client.is_model_ready("add_sub")


def test_files_in_load_requests_can_be_switched_off(repositories: Path, tmp_path: Path) -> None:
    (tmp_path / "add_sub").symlink_to(repositories / "main" / "add_sub")
    flags = ["--model-control-mode=explicit", "--allow-file-override=false"]
    with naiad([str(tmp_path)], flags) as one:
        parameters = {"config": "{}", "file:1/model.py": "cHJpbnQoMSk="}
        status, body = one.post("/v2/repository/models/evil/load", {"parameters": parameters})
        assert (status, b"files in load requests are switched off" in body) == (501, True)
