"""Tests of checkpoints from a hub, against a server that speaks the hub's protocol: tokens, resumed
transfers, offline mode, error messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.hub import Hub, run_hub

pytest.importorskip("huggingface_hub", reason="the hub's own client")

FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 90_000,
    "README.md": b"not needed",
}
TOKEN = "hf_secret"
SCRIPT = """
import sys
from naiad.backends.llm.checkpoint import find_checkpoint
from naiad.errors import NaiadError
try:
    print(find_checkpoint(sys.argv[1], []))
except NaiadError as error:
    print(f"{error.code.name}: {error.message}")
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with run_hub(FILES, TOKEN) as running:
        yield running


def find(name: str, home: Path, hub: Hub | None, **environment: str) -> str:
    """Runs find_checkpoint in a new process, because the hub's client reads its environment once,
    when it is imported."""
    endpoint = hub.url if hub is not None else "http://127.0.0.1:9"
    variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    variables |= {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_downloads_resumes_and_then_works_offline(hub: Hub, tmp_path: Path) -> None:
    path = Path(find("org/tiny", tmp_path, hub, PRIVATE_REPO_TOKEN=TOKEN))
    assert path.is_relative_to(tmp_path)
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert hub.ranges == ["bytes=10485760-"], "the client writes pieces of 10 MiB"
    assert "README.md" not in hub.fetched
    assert find("org/tiny", tmp_path, None, HF_HUB_OFFLINE="1") == str(path)


def test_error_messages(hub: Hub, tmp_path: Path) -> None:
    assert find("org/tiny", tmp_path, hub) == (
        "NOT_FOUND: the hub has no repository 'org/tiny', "
        "or it is private and the token gives no access"
    )
    assert find("org/tiny", tmp_path, None, HF_HUB_OFFLINE="1").startswith(
        "UNAVAILABLE: 'org/tiny' is not in the local cache and cannot be fetched from the hub: "
        "OfflineModeIsEnabled: "
    )
    assert re.fullmatch(
        "UNAVAILABLE: 'org/tiny' is not in the local cache and cannot be fetched from the hub: "
        r"ConnectError: .*Connection refused",
        find("org/tiny", tmp_path, None),
    )
    (tmp_path / "file").touch()
    assert re.search(
        "org/tiny' cannot be written to the cache .*; HF_HOME chooses another folder",
        find("org/tiny", tmp_path / "file" / "home", hub, HF_TOKEN=TOKEN),
    )
