"""The configurations of docs/proxies.md in front of a real server: `make proxies`.

Each proxy that is installed runs with the text of the page; only its ports are others.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.docs.blocks import read_page
from tests.server.gates import eventually
from tests.server.harness import Server, free_ports, naiad, naiad_command, naiad_environment
from tests.server.other_user import guarded_calls

ROOT = Path(__file__).parents[2]
EXAMPLES = str(ROOT / "examples" / "repository")
COMMANDS = {
    "nginx": ("nginx", "-p", "{folder}", "-c", "{config}", "-g", "daemon off; pid {folder}/pid;"),
    "haproxy": ("haproxy", "-f", "{config}", "-db"),
    "caddy": ("caddy", "run", "--adapter", "caddyfile", "--config", "{config}"),
}
FLAGS = ["--model-control-mode=explicit", "--load-model=*", "--trusted-proxy=127.0.0.1"]


class Behind(NamedTuple):
    server: Server
    http: str
    grpc: str


def page_text(language: str) -> str:
    blocks = read_page(ROOT / "docs" / "proxies.md").blocks
    (block,) = (block for block in blocks if block.language == language)
    return block.text + "\n"


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module", params=list(COMMANDS))
def name(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}: apt-get install {name}")
    return name


def run_proxy(name: str, server: Server, folder: Path) -> tuple[subprocess.Popen[bytes], Behind]:
    http, grpc, _ = free_ports()
    text = page_text(name)
    for port, own in (
        (8080, http),
        (8081, grpc),
        (8000, server.http_port),
        (8001, server.grpc_port),
    ):
        assert str(port) in text
        text = text.replace(f":{port}", f":{own}").replace(f"listen {port}", f"listen {own}")
    config = folder / "config"
    config.write_text(text)
    (folder / "logs").mkdir()
    command = [part.format(folder=folder, config=config) for part in COMMANDS[name]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: is_open(http) and is_open(grpc), f"{name} listens")
    return process, Behind(server, f"http://127.0.0.1:{http}/ai", f"127.0.0.1:{grpc}")


@pytest.fixture(scope="module")
def behind(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp(name)
    with naiad([EXAMPLES], FLAGS) as server:
        process, behind = run_proxy(name, server, folder)
        try:
            yield behind
        finally:
            process.terminate()
            process.wait(30)


def lowered(headers: Message) -> dict[str, str]:
    """HAProxy writes the names of fields in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def ask(request: Request) -> tuple[int, dict[str, str], bytes]:
    try:
        with urlopen(request, timeout=60) as response:
            return response.status, lowered(response.headers), response.read()
    except HTTPError as error:
        with error:
            return error.code, lowered(error.headers), error.read()


def test_http_and_grpc_pass(behind: Behind) -> None:
    with urlopen(f"{behind.http}/v2/models/add_sub", timeout=60) as response:
        assert response.headers["X-Request-Id"]
    with grpc_client.InferenceServerClient(behind.grpc) as client:
        metadata = client.get_model_metadata("add_sub")
        inputs = []
        for tensor in metadata.inputs:
            shape = [max(size, 1) for size in tensor.shape]
            inputs.append(grpc_client.InferInput(tensor.name, shape, tensor.datatype))
            inputs[-1].set_data_from_numpy(np.ones(shape, np.float32))
        assert client.infer("add_sub", inputs).as_numpy(metadata.outputs[0].name) is not None


def test_events_pass_as_they_come(behind: Behind) -> None:
    """An event of the console comes once a second: a proxy that collected them would not show the
    first one in time."""
    with urlopen(f"{behind.http}/console/api/events", timeout=60) as response:
        assert response.headers["Cache-Control"] == "no-cache"
        start_s = time.monotonic()
        for _ in range(2):
            while not response.readline().startswith(b"data: "):
                assert time.monotonic() - start_s < 30


def test_the_console_works_below_a_path_and_changes_nothing(behind: Behind) -> None:
    """Not even with the token: without keys, nobody knows who is behind the proxy."""
    token = behind.server.console_headers()
    assert token
    page = ask(Request(f"{behind.http}/console"))[2].decode()
    for part in page.split('"console/static/')[1:]:
        assert ask(Request(f"{behind.http}/console/static/{part.split(chr(34))[0]}"))[0] == 200
    for call in guarded_calls(token):
        headers = {**call.headers, "Content-Type": "application/json"}
        body = call.body.encode() or None
        request = Request(f"{behind.http}{call.path}", body, headers, method=call.method)
        status, _, answer = ask(request)
        assert (status, b"through a proxy" in answer) == (403, True), (call, answer)


def test_a_browser_shows_the_console_below_a_path(behind: Behind) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        failed: list[str] = []
        page.on("response", lambda one: failed.append(one.url) if one.status == 404 else None)
        page.goto(f"{behind.http}/console/")
        page.get_by_role("link", name="add_sub", exact=True).click()
        api.expect(page.get_by_text(f"{behind.http}/v2/models/add_sub/infer").first).to_be_visible()
        api.expect(page.locator("#rights")).to_contain_text("may look, but not change")
        browser.close()
    assert failed == []


def test_the_audit_log_names_the_client(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys, log = tmp_path / "keys.json", tmp_path / "audit.jsonl"
    created = naiad_command("key", "create", "one", "--api-key-file", str(keys))
    key = subprocess.check_output(created, env=naiad_environment(), text=True).strip()
    flags = [*FLAGS, f"--api-key-file={keys}", f"--audit-log={log}"]
    with naiad([EXAMPLES], flags) as server:
        process, behind = run_proxy(name, server, tmp_path_factory.mktemp("audit"))
        try:
            headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": "203.0.113.9"}
            status, shown, _ = ask(Request(f"{behind.http}/v2/models/add_sub", headers=headers))
            assert status == 200

            def line() -> dict[str, str]:
                lines = log.read_text().splitlines()
                read: dict[str, str] = json.loads(lines[-1]) if lines else {}
                return read

            # Caddy trusts nobody before it, and names the client that it sees itself.
            address = "127.0.0.1" if name == "caddy" else "203.0.113.9"
            eventually(lambda: line().get("address") == address, "the line of the audit log")
            assert line()["request_id"] == shown["x-request-id"]
        finally:
            process.terminate()
            process.wait(30)
