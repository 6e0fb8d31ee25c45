"""The token of a server without API keys: a page that has none looks, and changes nothing."""

from __future__ import annotations

import pytest

from tests.browser.conftest import OpenPage
from tests.server.harness import Server

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")

from playwright.sync_api import expect


def test_the_printed_link_works_in_one_click(server: Server, open_page: OpenPage) -> None:
    """The token leaves the address at once, and works in a second tab and after a reload."""
    page = open_page(server, has_token=False)
    notice = page.locator("#rights")
    expect(notice).to_contain_text("This page may look, but not change anything")
    expect(notice).to_contain_text("naiad console")
    page.get_by_role("link", name="add_sub", exact=True).click()
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_text("This page may not change anything")).to_be_visible()
    second = page.context.new_page()
    second.goto(server.console_link())
    expect(second.locator("tbody tr").first).to_be_visible()
    expect(second.locator("#rights")).to_be_hidden()
    assert "token" not in second.url
    # The first tab hears of it.
    expect(notice).to_be_hidden()
    page.reload()
    expect(page.get_by_role("button", name="Reload")).to_be_visible()
    expect(notice).to_be_hidden()


def test_the_token_can_be_typed(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "deploy", has_token=False)
    expect(page.get_by_role("heading", name="Nothing can be deployed here")).to_be_visible()
    page.get_by_role("button", name="Enter the token").click()
    page.get_by_label("The token, or the whole link").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text("The server does not know this token")).to_be_visible()
    page.get_by_label("The token, or the whole link").fill(server.console_link())
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#rights")).to_be_hidden()
    expect(page.get_by_role("heading", name="Nothing can be deployed here")).to_be_hidden()


def test_a_link_with_a_wrong_token_takes_nothing_away(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, has_token=False)
    page.goto(server.console_link())
    expect(page.locator("tbody tr").first).to_be_visible()
    page.goto(f"http://{server.http}/console#token=wrong")
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.locator("#rights")).to_be_hidden()
    page.reload()
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.locator("#rights")).to_be_hidden()
