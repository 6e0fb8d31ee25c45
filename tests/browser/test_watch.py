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


def test_the_machine_is_shown_and_why_there_is_no_gpu(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "watch")
    page.get_by_role("tab", name="Machine").click()
    expect(page.get_by_role("img", name="CPU, last hour")).to_be_visible(timeout=20_000)
    gpu = page.get_by_role("region", name="GPU")
    graphics = page.get_by_role("img", name="GPU 0, last hour")
    expect(gpu.or_(graphics).first).to_be_visible()
    if gpu.count():
        expect(gpu).to_contain_text("Not shown: ")


def test_a_sample_of_requests_is_traced_and_each_has_a_waterfall(
    server: Server, open_page: OpenPage
) -> None:
    page = open_page(server, "watch")
    page.get_by_role("tab", name="Traces").click()
    traces = page.get_by_role("region", name="Traces")
    page.get_by_label("How many requests to trace").select_option("every request")
    page.get_by_role("button", name="Trace for a minute").click()
    expect(traces).to_contain_text("Tracing one of 1 requests until")
    data = {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = {"inputs": [{"name": "INPUT0", **data}, {"name": "INPUT1", **data}]}
    for _ in range(3):
        assert server.post("/v2/models/add_sub/infer", body)[0] == 200
    rows = traces.locator("details", has_text="add_sub")
    expect(rows).to_have_count(3, timeout=10_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Trace for a minute")).to_be_visible()
    assert server.post("/v2/models/add_sub/infer", body)[0] == 200
    rows.first.locator("summary").click()
    expect(page.get_by_role("img", name="Trace of add_sub")).to_be_visible()
    expect(rows).to_have_count(3)
