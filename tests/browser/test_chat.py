"""Chat in the playground with a tiny language model of random weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
pytest.importorskip("torch", reason="make test-llm installs torch and transformers")
pytest.importorskip("transformers", reason="make test-llm installs torch and transformers")
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("chat") / "tiny", max_positions=4096)
    with naiad([], [f"--model={checkpoint}"]) as server:
        yield server


def test_streams_stops_and_shows_the_request_as_code(
    chat_server: Server, open_page: OpenPage
) -> None:
    page = open_page(chat_server, "playground")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Most tokens").fill("12")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill("Hello")
    page.keyboard.press("Enter")
    reply = page.locator(".turn.assistant").first
    expect(reply).to_contain_text("first token after", timeout=60_000)
    expect(page.locator(".turn.refused")).to_have_count(0)

    page.get_by_label("Most tokens").fill("3000")
    page.get_by_label("Temperature").fill("1.5")
    page.get_by_label("Message").fill("Go on")
    page.get_by_role("button", name="Send").click()
    last = page.locator(".turn.assistant").last
    expect(last.locator("span").first).not_to_be_empty()
    stop = page.get_by_role("button", name="Stop")
    if stop.is_visible():
        stop.click()
    expect(last).to_contain_text("tokens")

    page.get_by_text("Show as code").click()
    page.get_by_role("tab", name="openai").click()
    code = page.get_by_role("region", name="Code").inner_text()
    assert "Be brief." in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace("3000", "5")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_refusal_is_explained_and_the_message_is_kept(
    chat_server: Server, open_page: OpenPage
) -> None:
    page = open_page(chat_server, "playground")
    page.get_by_label("Message").fill("x" * 9000)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.refused")).to_contain_text("The request is not valid")
    expect(page.get_by_label("Message")).to_have_value("x" * 9000)
