"""Measure in a browser: start, watch, cancel, read the report, apply what an analysis proposes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import expect

from tests.browser.conftest import OPTIONS, OpenPage
from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import write_model

SLEEPY = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])
"""
CONFIG = """\
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


@pytest.fixture
def sleepy(tmp_path: Path) -> Path:
    write_model(tmp_path / "repository", "sleepy", CONFIG, {"1/model.py": SLEEPY})
    return tmp_path / "repository"


@pytest.fixture
def measured(sleepy: Path) -> Iterator[Server]:
    with naiad([str(sleepy)], OPTIONS) as server:
        yield server


def test_a_load_is_measured_and_its_report_is_read(measured: Server, open_page: OpenPage) -> None:
    page = open_page(measured, "measure")
    expect(page.get_by_text("Nothing was measured since the server started.")).to_be_visible()
    page.get_by_label("Requests at a time").fill("1:2:9x")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("expected N, START:END or START:END:STEP")
    page.get_by_label("Requests at a time").fill("1:2")
    page.get_by_label("Length of a window").fill("200")
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"#/measure/."))
    expect(page.locator(".state")).to_have_text("Running", timeout=10_000)
    page.reload()
    expect(page.locator(".state")).to_have_text("Done", timeout=90_000)
    report = page.locator(".report")
    expect(report).to_contain_text("Best throughput")
    heading = report.get_by_role("button", name=re.compile("p99")).first
    heading.click()
    expect(report.locator("th[aria-sort=ascending]")).to_have_count(1)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Nothing was measured since the server started.")).to_be_visible()


def test_a_measurement_is_cancelled(measured: Server, open_page: OpenPage) -> None:
    page = open_page(measured, "measure")
    page.get_by_label("Length of a window").fill("60000")
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"#/measure/."))
    expect(page.locator(".state")).to_have_text("Running", timeout=10_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".state")).to_have_text("Cancelled", timeout=30_000)


def num_instances(server: Server) -> int:
    (row,) = json.loads(server.get("/console/api/state")[1])["models"]
    return len(row["instances"])


def test_the_best_configuration_is_applied_as_a_diff_and_undone(
    measured: Server, sleepy: Path, open_page: OpenPage
) -> None:
    """Two instances of a model that sleeps are twice as fast as one."""
    config = sleepy / "sleepy" / "config.pbtxt"
    page = open_page(measured, "measure")
    page.get_by_label("Find the best configuration").check()
    page.get_by_label("Most instances").fill("2")
    page.get_by_label("Largest batch").fill("1")
    page.get_by_label("Most requests at a time").fill("4")
    page.get_by_label("Length of a window").fill("300")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".state")).to_have_text("Done", timeout=240_000)
    diff = page.get_by_role("region", name="Changes of sleepy/config.pbtxt")
    expect(diff.locator(".added", has_text="count: 2")).to_be_visible()
    assert config.read_text() == CONFIG
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.get_by_text("sleepy serves with the new configuration")).to_be_visible(
        timeout=20_000
    )
    assert "count: 2" in config.read_text()
    assert num_instances(measured) == 2
    page.get_by_role("button", name="Undo").click()
    expect(diff.locator(".added", has_text="count: 2")).to_be_visible(timeout=20_000)
    assert config.read_text() == CONFIG
    assert num_instances(measured) == 1
    # A file that somebody has changed meanwhile is kept.
    config.write_text(f"# mine\n{CONFIG}")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("was changed by somebody else")
    assert config.read_text() == f"# mine\n{CONFIG}"
