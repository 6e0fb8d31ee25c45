"""The playground in a browser: tensors, a drawn digit, code that works when pasted."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.server.harness import Server

SEVEN = [(0.25, 0.15), (0.75, 0.15), (0.55, 0.5), (0.42, 0.88)]
ONE = [(0.5, 0.1), (0.5, 0.9)]


def draw(page: Page, points: list[tuple[float, float]]) -> None:
    box = page.locator("canvas").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()


@pytest.mark.parametrize(("points", "digit"), [(SEVEN, "7"), (ONE, "1")])
def test_reads_a_digit_that_was_drawn(
    server: Server, open_page: OpenPage, points: list[tuple[float, float]], digit: str
) -> None:
    page = open_page(server, "playground/digits")
    expect(page.locator("canvas")).to_be_visible()
    draw(page, points)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_have_text(digit)


@pytest.mark.parametrize("language", ["curl", "tritonclient HTTP", "tritonclient gRPC"])
def test_the_code_of_a_request_works_when_pasted(
    server: Server, open_page: OpenPage, language: str
) -> None:
    page = open_page(server, "playground/add_sub")
    page.get_by_label("Data of INPUT0").fill("[10, 20, 30, 40]")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Response")).to_contain_text("OUTPUT0")
    page.get_by_text("Show as code").click()
    page.get_by_role("tab", name=language, exact=True).click()
    page.get_by_role("button", name="Copy").click()
    code = page.evaluate("navigator.clipboard.readText()")
    command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "10" in done.stdout
    assert "43" in done.stdout


def test_an_error_is_explained_and_nothing_is_sent_that_cannot_be_right(
    server: Server, open_page: OpenPage
) -> None:
    page = open_page(server, "playground/add_sub")
    response = page.get_by_role("region", name="Response")
    page.get_by_label("Data of INPUT0").fill("[1, 2]")
    page.get_by_role("button", name="Send").click()
    expect(response).to_contain_text("the shape [1,4] has 4 elements, and the data has 2")
    page.get_by_label("Data of INPUT0").fill("[1, 2,")
    page.get_by_role("button", name="Send").click()
    expect(response).to_contain_text("the data is not JSON")
    page.get_by_label("Data of INPUT0").fill("1")
    page.get_by_label("Shape of INPUT0").fill("1, 5")
    page.get_by_role("button", name="Send").click()
    expect(response).to_contain_text("The request is not valid")
    expect(response).to_contain_text("unexpected shape for input 'INPUT0'")
