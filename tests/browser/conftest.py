"""A real server and a real browser: Debian's chromium, driven by Playwright.

Run them with `make test-browser`. They are skipped, with the reason, where either is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.playground_models import write_models
from tests.server.harness import Server, naiad

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "repository"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
OPTIONS = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false"]
BROKEN_CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FLOAT32 dims: [ 1 ] } ]
"""
BROKEN_CODE = """\
class TritonPythonModel:
    def initialize(self, args):
        raise KeyError("TOKEN")
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
    if not CHROMIUM:
        pytest.skip("there is no chromium: apt-get install chromium, or set CHROMIUM to its path")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, models of the playground's tests, and two models that do not load."""
    folder = tmp_path_factory.mktemp("console") / "repository"
    shutil.copytree(EXAMPLES, folder)
    write_models(folder)
    for name, config, code in (
        ("broken_config", BROKEN_CONFIG, ""),
        ("broken_code", 'backend: "python"\n', BROKEN_CODE),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        (folder / name / "1" / "model.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with naiad([str(repository)], OPTIONS) as started:
        yield started


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page of a server in a browser profile of its own. A script that fails, and anything
    that the policy blocks, fails the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def open_page(
        server: Server, path: str = "", *, has_token: bool = True, **options: Any
    ) -> Page:
        context = browser.new_context(**options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        token = server.console_headers().get("x-naiad-console") if has_token else None
        if token:
            context.add_init_script(f"localStorage.setItem('naiad-console', '{token}')")
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: (
                problems.append(message.text) if "Content Security Policy" in message.text else None
            ),
        )
        page.goto(f"http://{server.http}/console#/{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
