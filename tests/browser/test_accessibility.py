"""axe-core finds no serious problem on any page, light and dark, wide and narrow.

AXE is the path of axe.min.js (`npm pack axe-core`); without it the tests are skipped.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.server.harness import Server

AXE = Path(os.environ.get("AXE", "build/axe/package/axe.min.js"))
PAGES = [
    "models",
    "models/digit_reader",
    "models/broken_code",
    "deploy",
    "deploy/digits",
    "playground/digits",
    "playground/letters",
    "playground/means",
    "watch",
    "measure",
    "keys",
]
TABS = {"watch": ["Machine", "Traces"], "playground/means": ["File", "JSON"]}
pytestmark = pytest.mark.skipif(not AXE.is_file(), reason=f"there is no {AXE}: make test-browser")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_no_serious_problem(
    server: Server, open_page: OpenPage, scheme: str, width: int
) -> None:
    page = open_page(
        server, color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    page.add_script_tag(content=AXE.read_text())
    for name in PAGES:
        page.evaluate("name => { location.hash = `#/${name}` }", name)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check(page, name)
        for tab in TABS.get(name, ()):
            page.get_by_role("tab", name=tab).click()
            check(page, f"{name}, {tab}")


def check(page: Page, name: str) -> None:
    page.wait_for_timeout(600)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        (rule["id"], [node["html"][:200] for node in rule["nodes"]])
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]
    assert serious == [], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_problem_in_a_report(
    server: Server, open_page: OpenPage, scheme: str
) -> None:
    page = open_page(server, "measure", color_scheme=scheme, bypass_csp=True)
    page.add_script_tag(content=AXE.read_text())
    page.get_by_label("Model").select_option("add_sub")
    page.get_by_label("Requests at a time").fill("2")
    page.get_by_label("Length of a window").fill("200")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".report")).to_be_visible(timeout=60_000)
    check(page, "a report")
    page.get_by_role("link", name="All measurements").click()
    expect(page.locator(".job").first).to_be_visible()
    check(page, "measurements")


def test_works_by_keyboard_alone(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "models")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("link", name="shout").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Unload").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".state")).to_have_text("Ready")


def test_a_measurement_is_started_and_cancelled_by_keyboard_alone(
    server: Server, open_page: OpenPage
) -> None:
    page = open_page(server, "measure")
    expect(page.get_by_label("Model")).to_have_value("add_sub")
    page.get_by_label("Measure the load").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Most instances")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.get_by_label("Length of a window").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("60000")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/measure/."))
    expect(page.locator(".state")).to_have_text("Running", timeout=20_000)
    page.get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".state")).to_have_text("Cancelled", timeout=30_000)
