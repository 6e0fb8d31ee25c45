"""The Dockerfiles, as far as they can be checked without a container engine."""

from __future__ import annotations

import fnmatch
import http.server
import importlib.util
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy" / "docker"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def instructions(name: str) -> list[list[str]]:
    text = re.sub(r"\\\n", " ", (DOCKER / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_the_files_that_are_copied_exist_and_are_sent(name: str) -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    for instruction, rest in instructions(name):
        if instruction == "COPY" and "--from=" not in rest:
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            for source in sources:
                assert (ROOT / source).exists(), source
                assert any(
                    source == entry or fnmatch.fnmatch(source, f"{entry}/*") for entry in sent
                ), source


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_the_image_runs_as_a_user_with_labels_and_a_health_check(name: str) -> None:
    found = dict(instructions(name))
    assert found["USER"] == "1000:1000"
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert "/opt/naiad/healthcheck.py" in found["HEALTHCHECK"]
    assert json.loads(found["ENTRYPOINT"]) == ["/opt/naiad/bin/entrypoint.sh"]
    assert json.loads(found["CMD"])[0] == "tritonserver"
    for label in ("title", "version", "revision", "licenses", "base.name"):
        assert f"org.opencontainers.image.{label}=" in found["LABEL"]
    # Two stages: the tools that build the wheels stay out of the image.
    assert [rest for word, rest in instructions(name) if word == "FROM"][-1].endswith("AS runtime")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "naiad-default"),
        (["--http-port=9000"], "9000"),
        (["--http-port", "9001"], "9001"),
    ],
)
def test_the_health_check_finds_the_port(arguments: list[str], expected: str) -> None:
    http_port = load("healthcheck").http_port
    command = ["python", "tritonserver", *arguments]
    assert http_port(command, {"NAIAD_HTTP_PORT": "naiad-default"}) == expected
    if not arguments:
        assert http_port(command, {}) == "8000"


@pytest.mark.parametrize(("status", "expected"), [(200, True), (401, True), (500, False)])
def test_the_health_check_asks_the_server(status: int, expected: bool) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v2/health/live" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    is_alive = load("healthcheck").is_alive
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert is_alive(str(server.server_port)) is expected
        finally:
            server.shutdown()
            thread.join()
    assert not is_alive(str(server.server_port))


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_a_stage_declares_the_arguments_that_it_uses(name: str) -> None:
    """One that is declared before the first FROM is known in FROM only."""
    declared: set[str] = set()
    for instruction, rest in instructions(name):
        if instruction == "FROM":
            declared = set()
        elif instruction == "ARG":
            declared.add(rest.partition("=")[0])
        elif instruction in ("LABEL", "ENV", "RUN"):
            assert set(re.findall(r"\$\{(\w+)\}", rest)) <= declared, rest


def test_the_bill_of_materials() -> None:
    result = subprocess.run(
        [sys.executable, DOCKER / "sbom.py"], check=True, capture_output=True, text=True
    )
    document = json.loads(result.stdout)
    components = {entry["name"].lower(): entry for entry in document["components"]}
    assert components["numpy"]["purl"].startswith("pkg:pypi/numpy@")
    assert document["metadata"]["component"]["name"] == "naiad"
    purls = [entry["purl"] for entry in document["components"]]
    assert len(set(purls)) == len(purls)
