"""Signing in and the keys page in a browser."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import Page, expect

from naiad.keys.api_class import SCOPES
from tests.browser.conftest import EXAMPLES, OPTIONS, OpenPage
from tests.server.gates import eventually
from tests.server.harness import Server, naiad, naiad_command, naiad_environment


def create_key(file: Path, name: str, scopes: str, *options: str) -> str:
    return subprocess.run(
        naiad_command(
            "key", "create", name, "--scopes", scopes, "--api-key-file", str(file), *options
        ),
        env=naiad_environment(), capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


class Guarded:
    """A server that requires keys."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        self.admin = create_key(self.file, "admin", ",".join(SCOPES))
        self.reader = create_key(self.file, "reader", "statistics")
        self.slow = create_key(self.file, "slow", "statistics,metadata,inference", "--rpm", "4")
        self.server: Server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("keys"))
    with naiad([str(EXAMPLES)], [*OPTIONS, f"--api-key-file={made.file}"]) as server:
        made.server = server
        yield made


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def status(server: Server, key: str) -> int:
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/add_sub", headers={"Authorization": f"Bearer {key}"}
    )
    return server.fetch(request)[0]


def test_asks_for_a_key_and_keeps_it_out_of_scripts(guarded: Guarded, open_page: OpenPage) -> None:
    page = open_page(guarded.server, "models")
    sign_in(page, "sk-naiad-wrong")
    expect(page.get_by_role("alert")).to_contain_text("the API key is not valid")
    sign_in(page, guarded.admin)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    assert guarded.admin not in str(cookie)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_creates_a_key_that_is_shown_once_rotates_and_revokes_it(
    guarded: Guarded, open_page: OpenPage
) -> None:
    page, server = open_page(guarded.server, "keys"), guarded.server
    sign_in(page, guarded.admin)
    page.get_by_role("button", name="Create key").click()
    page.get_by_label("Name").fill("team")
    page.get_by_label("Models").fill("add_*")
    page.get_by_label("Requests per minute").fill("600")
    page.get_by_role("button", name="Create", exact=True).click()
    key = page.locator("#secret").inner_text()
    page.get_by_role("button", name="I have stored it").click()
    assert status(server, key) == 200
    row = page.get_by_role("row").filter(has_text="team")
    expect(row).to_contain_text("600 requests per minute")
    assert key not in page.content()

    row.get_by_role("button", name="Rotate").click()
    page.get_by_label("The old secret stays valid for").select_option("1s")
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    new = page.locator("#secret").inner_text()
    page.get_by_role("button", name="I have stored it").click()
    assert status(server, new) == 200
    eventually(lambda: status(server, key) == 401, "the old secret is refused")

    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    assert status(server, new) == 401


def test_a_key_without_a_scope_is_told_which_one_it_lacks(
    guarded: Guarded, open_page: OpenPage
) -> None:
    page = open_page(guarded.server, "models/add_sub")
    sign_in(page, guarded.reader)
    expect(page.get_by_role("button", name="Reload")).to_be_disabled()
    expect(page.get_by_text("The key lacks the scope 'metadata'")).to_be_visible()


def test_an_open_page_asks_to_sign_in_when_its_key_is_revoked(
    guarded: Guarded, open_page: OpenPage
) -> None:
    key = create_key(guarded.file, "short", "statistics,metadata,inference")
    page = open_page(guarded.server, "models")
    sign_in(page, guarded.admin)  # a running server follows the file within a second
    expect(page.locator("tbody tr").first).to_be_visible()
    other = open_page(guarded.server, "models")
    sign_in(other, key)
    expect(other.locator("tbody tr").first).to_be_visible()
    page.goto(f"http://{guarded.server.http}/console#/keys")
    page.get_by_role("button", name="Revoke short").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(other.get_by_role("dialog")).to_contain_text("was revoked", timeout=10_000)


def test_a_limit_is_named_with_the_time_when_it_resets(
    guarded: Guarded, open_page: OpenPage
) -> None:
    page = open_page(guarded.server, "playground/add_sub")
    sign_in(page, guarded.slow)
    response = page.get_by_role("region", name="Response")
    for _ in range(5):
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(response).to_contain_text("Limit reached: 4 requests per minute")
    expect(response).to_contain_text("The limit belongs to the key 'slow'")
    expect(response).to_contain_text(re.compile(r"pass in \d+ s, at \d\d:\d\d:\d\d"))


def test_a_foreign_page_cannot_change_anything(guarded: Guarded, open_page: OpenPage) -> None:
    """The browser of somebody who is signed in visits a page of another origin: its script sends
    what it likes, the cookie does not travel, and the server refuses the origin."""
    page = open_page(guarded.server, "models")
    sign_in(page, guarded.admin)
    expect(page.locator("tbody tr").first).to_be_visible()
    foreign = page.context.new_page()
    foreign.route(
        "http://evil.example/",
        lambda route: route.fulfill(body="<title>evil</title>", content_type="text/html"),
    )
    foreign.goto("http://evil.example/")
    address = f"http://{guarded.server.http}/v2/repository/models/add_sub/unload"
    with foreign.expect_request(address) as sent:
        foreign.evaluate(
            "address => { fetch(address, {method: 'POST', mode: 'no-cors', body: '{}', "
            "credentials: 'include'}).catch(() => {}) }",
            address,
        )
    reply = sent.value.response()
    assert reply is None or reply.status in (401, 403)
    assert status(guarded.server, guarded.admin) == 200


def test_without_a_session_or_with_a_wrong_scope_requests_are_refused(
    guarded: Guarded, open_page: OpenPage
) -> None:
    page = open_page(guarded.server, "models")
    ask = (
        "async path => (await fetch(path, {method: 'POST', body: '{}', "
        "headers: {'Content-Type': 'application/json', "
        "'X-Naiad-Console': localStorage.getItem('naiad-console') ?? ''}})).status"
    )
    unload = "/v2/repository/models/add_sub/unload"
    assert page.evaluate(ask, unload) == 401
    sign_in(page, guarded.reader)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert page.evaluate(ask, unload) == 403
    assert page.evaluate(ask, "/key/generate") == 403
    assert page.evaluate(ask, "/console/api/traces/ticket") == 403
    assert status(guarded.server, guarded.admin) == 200


def test_a_page_without_its_secret_signs_in_again(guarded: Guarded, open_page: OpenPage) -> None:
    """Its cookie is not enough. A second tab has the secret, too."""
    page = open_page(guarded.server, "models")
    sign_in(page, guarded.admin)
    expect(page.locator("tbody tr").first).to_be_visible()
    second = page.context.new_page()
    second.goto(page.url)
    expect(second.locator("tbody tr").first).to_be_visible()
    page.evaluate("localStorage.removeItem('naiad-console')")
    page.reload()
    expect(page.get_by_role("dialog")).to_be_visible()
    sign_in(page, guarded.admin)
    expect(page.locator("tbody tr").first).to_be_visible()


def test_the_usage_of_a_key_is_drawn_over_time(guarded: Guarded, open_page: OpenPage) -> None:
    for _ in range(20):
        assert status(guarded.server, guarded.admin) == 200
    page = open_page(guarded.server, "keys")
    sign_in(page, guarded.admin)
    page.wait_for_timeout(11_000)  # a point each ten seconds
    page.get_by_role("button", name="Usage admin").click()
    picture = page.get_by_role("dialog").get_by_role("img", name="Requests, last hour")
    expect(picture).to_have_attribute("aria-label", re.compile(r"let in: [\d.]+, refused: 0"))
    page.get_by_role("button", name="Close").click()
    page.goto(f"http://{guarded.server.http}/console#/watch")
    page.get_by_role("tab", name="Keys").click()
    expect(page.get_by_role("img", name="Requests of the key, last hour")).to_be_visible()
