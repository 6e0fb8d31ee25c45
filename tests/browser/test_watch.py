"""The last hour and the log in a browser."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.server.harness import Server

MEGABYTES = re.compile(r"Latest: memory: \d[\d.]* MB")


def test_shows_charts_of_the_last_hour_and_the_log(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "watch/add_sub")
    memory = page.get_by_role("img", name="Memory, last hour")
    expect(memory).to_have_attribute("aria-label", MEGABYTES, timeout=20_000)
    expect(page.get_by_role("img", name="Latency, last hour")).to_be_visible()
    log = page.get_by_role("log", name="Log")
    expect(log).to_contain_text("Started HTTPService")
    page.get_by_label("Severity").select_option("Errors")
    expect(log.get_by_text("Started HTTPService")).to_be_hidden()
    expect(log.locator("li:visible").first).to_contain_text("broken_c")
    page.get_by_label("Severity").select_option("All")
    page.get_by_label("Filter the log").fill("nothing has this text")
    expect(log.locator("li:visible")).to_have_count(0)
