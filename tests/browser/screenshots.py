"""Makes pictures of every page of the console: light and dark, 1440 and 390 pixels wide.

    python -m tests.browser.screenshots build/screenshots
    python -m tests.browser.screenshots --docs      # the pictures of the documentation

Look at all of them before a release. Chat is left out where torch is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from naiad.keys.api_class import SCOPES
from tests.browser.conftest import BROKEN_CODE, BROKEN_CONFIG, CHROMIUM, EXAMPLES, OPTIONS
from tests.browser.playground_models import write_chat_models, write_models
from tests.browser.test_keys import create_key, sign_in
from tests.browser.test_playground import SEVEN, draw, png
from tests.server.harness import Server, naiad
from tests.server.router_fleet import fleet
from tests.server.router_fleet import write_repository as write_fleet

SIZES = {"1440": (1440, 900), "390": (390, 844)}
HISTORY_MS = 41_000
"""The server measures every ten seconds; charts need a few points."""


class Studio:
    def __init__(self, browser: Browser, server: Server, key: str, out: Path) -> None:
        self._browser = browser
        self._server = server
        self._key = key
        self._out = out

    def shoot_all(self, scheme: str, width: str, job: int, *, has_chat: bool) -> None:
        size = SIZES[width]
        context = self._browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light",
            viewport={"width": size[0], "height": size[1]},
        )
        page = context.new_page()
        page.goto(f"http://{self._server.http}/console#/models")
        expect(page.get_by_label("API key")).to_be_visible()

        def shoot(name: str, *, is_full: bool = True) -> None:
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(700)
            file = self._out / f"{name}-{scheme}-{width}.png"
            page.screenshot(path=file, full_page=is_full)

        def visit(path: str) -> None:
            page.evaluate("path => { location.hash = `#/${path}` }", path)
            page.wait_for_timeout(400)
            expect(page.get_by_role("heading", level=1)).to_be_visible()

        shoot("sign-in")
        sign_in(page, self._key)
        expect(page.locator("tbody tr").first).to_be_visible()
        shoot("models")
        visit("models/digit_reader")
        shoot("model")
        visit("playground/digits")
        draw(page, SEVEN)
        page.get_by_label("Trace the request").check()
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("img", name="Trace of digits")).to_be_visible()
        shoot("playground-digit")
        visit("playground/means")
        page.get_by_label("Image for IMAGE", exact=True).set_input_files(
            {"name": "orange.png", "mimeType": "image/png", "buffer": png((255, 120, 20), 64)}
        )
        page.get_by_role("button", name="Send").click()
        shoot("playground-image")
        visit("playground/letters")
        page.get_by_role("button", name="Compare", exact=True).click()
        shoot("playground-embeddings")
        if has_chat:
            self._chat(page, visit, shoot)
        self._deploy(page, visit, shoot)
        visit("watch/add_sub")
        shoot("watch")
        for tab in ("Machine", "Keys", "Traces"):
            page.get_by_role("tab", name=tab, exact=True).click()
            page.wait_for_timeout(600)
            if tab == "Traces" and page.locator(".traces summary").count():
                page.locator(".traces summary").first.click()
            shoot(f"watch-{tab.lower()}")
        page.get_by_role("tab", name="Model", exact=True).click()
        visit("measure")
        shoot("measure")
        visit(f"measure/{job}")
        expect(page.locator(".report")).to_be_visible()
        shoot("measure-report")
        visit("keys")
        expect(page.locator("tbody tr").first).to_be_visible()
        shoot("keys")
        page.get_by_role("button", name="Usage admin").click()
        shoot("keys-usage", is_full=False)
        page.get_by_role("button", name="Close").click()
        context.close()

    def _deploy(self, page: Page, visit: Any, shoot: Any) -> None:
        visit("deploy")
        shoot("deploy")
        page.get_by_role("tab", name="Catalogue").click()
        page.get_by_role("button", name="Use double", exact=True).click()
        expect(page.get_by_role("button", name="Deploy", exact=True)).to_be_enabled(timeout=30_000)
        page.get_by_label("More packages, by requirements.txt").check()
        page.get_by_label("requirements.txt", exact=True).fill("scikit-learn==1.7.2")
        part = page.get_by_role("region", name="Cores, memory and variables")
        part.get_by_label("Cores of each instance").fill("1")
        part.get_by_label("Memory of each instance, at most").fill("2GiB")
        part.get_by_role("button", name="Add a variable").click()
        page.keyboard.type("LANGUAGE")
        page.wait_for_timeout(1000)
        shoot("deploy-form")
        page.get_by_role("button", name="Start over").click()
        visit("deploy/digits")
        page.get_by_role("spinbutton", name="Instances").fill("2")
        expect(page.locator(".diff .added")).to_be_visible(timeout=30_000)
        shoot("deploy-edit")
        page.get_by_role("button", name="Discard changes").click()

    def _chat(self, page: Page, visit: Any, shoot: Any) -> None:
        visit("playground/small")
        page.get_by_label("Most tokens").fill("24")
        page.get_by_label("Compare with").select_option("large")
        page.get_by_label("Message").fill("What is the capital of France?")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Times of large")).to_contain_text("tokens/s", timeout=60_000)
        shoot("playground-chat")
        page.get_by_label("Compare with").select_option("")


def shoot_router(browser: Browser, folder: Path, out: Path) -> None:
    """The page of a router with three replicas, one of which is down and one is drained."""
    with fleet(write_fleet(folder / "fleet"), "east", "west", "spare") as servers:
        servers.router.post("/router/replicas/west/drain", {})
        servers.kill("spare")
        for scheme in ("light", "dark"):
            for width, (pixels, height) in SIZES.items():
                context = browser.new_context(
                    color_scheme="dark" if scheme == "dark" else "light",
                    viewport={"width": pixels, "height": height},
                )
                page = context.new_page()
                page.goto(f"http://{servers.router.http}/console")
                expect(page.get_by_text("Down", exact=True)).to_be_visible(timeout=20_000)
                page.screenshot(path=out / f"nodes-{scheme}-{width}.png", full_page=True)
                context.close()


def write_repository(folder: Path, *, has_chat: bool) -> Path:
    repository = folder / "repository"
    shutil.copytree(EXAMPLES, repository)
    write_models(repository)
    if has_chat:
        write_chat_models(repository)
    for name, config, code in (
        ("broken_config", BROKEN_CONFIG, ""),
        ("broken_code", 'backend: "python"\n', BROKEN_CODE),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(code)
    return repository


def call(server: Server, key: str, path: str, body: object) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http}{path}", data, headers)
    return json.loads(server.fetch(request)[1])


def send_traffic(server: Server, key: str, stopped: threading.Event) -> None:
    data = {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    body = {"inputs": [{"name": "INPUT0", **data}, {"name": "INPUT1", **data}]}
    while not stopped.wait(0.02):
        call(server, key, "/v2/models/add_sub/infer", body)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    has_chat = importlib.util.find_spec("torch") is not None
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder), has_chat=has_chat)
        file = Path(folder) / "keys.json"
        key = create_key(file, "admin", ",".join(SCOPES))
        create_key(file, "batch-jobs", "inference,metadata", "--rpm", "600")
        cluster = Path(folder) / "cluster"
        cluster.mkdir()
        (cluster / "head").write_text("10.0.0.1:6380")  # the form shows where to place a model
        variables = {"NAIAD_CLUSTER_DIR": str(cluster)}
        options = [*OPTIONS, f"--api-key-file={file}"]
        with naiad([str(repository)], options, variables) as server:
            stopped = threading.Event()
            thread = threading.Thread(target=send_traffic, args=(server, key, stopped))
            thread.start()
            try:
                order = {"type": "perf", "model": "add_sub", "concurrency": "1:7:3"}
                job = call(server, key, "/console/api/measure", {**order, "interval_ms": 400})["id"]
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(
                        executable_path=CHROMIUM, args=["--no-sandbox"]
                    )
                    page = browser.new_page()
                    page.wait_for_timeout(HISTORY_MS)
                    studio = Studio(browser, server, key, out)
                    for scheme in ("light", "dark"):
                        for width in SIZES:
                            studio.shoot_all(scheme, width, job, has_chat=has_chat)
                    shoot_router(browser, Path(folder), out)
                    browser.close()
            finally:
                stopped.set()
                thread.join()
    print(f"{len(list(out.glob('*.png')))} pictures in {out}")


def shoot_docs(out: Path) -> None:
    """The pictures in docs/images: a server with the examples only, and a router."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        repository = Path(folder) / "models"
        shutil.copytree(EXAMPLES, repository)
        handwriting = (repository / "digits" / "1" / "model.onnx").read_bytes()
        with naiad([str(repository)], []) as server:
            stopped = threading.Event()
            thread = threading.Thread(target=send_traffic, args=(server, "none", stopped))
            thread.start()
            try:
                page = browser.new_page(viewport={"width": 1440, "height": 860})
                page.goto(f"http://{server.http}/console#/models")
                page.wait_for_timeout(7000)
                page.screenshot(path=out / "console-models.png")
                order = {"type": "perf", "model": "digits", "concurrency": "1:9:2"}
                body = {**order, "interval_ms": 500}
                job = call(server, "none", "/console/api/measure", body)["id"]
                page.goto(f"http://{server.http}/console#/deploy")
                page.get_by_label("Files of the model").set_input_files(
                    {"name": "handwriting.onnx", "mimeType": "", "buffer": handwriting}
                )
                button = page.get_by_role("button", name="Deploy", exact=True)
                expect(button).to_be_enabled(timeout=30_000)
                page.wait_for_timeout(1000)
                page.screenshot(path=out / "console-deploy.png")
                part = page.get_by_role("region", name="Cores, memory and variables")
                part.get_by_label("Cores of each instance").fill("1")
                part.get_by_label("Memory of each instance, at most").fill("2GiB")
                part.get_by_role("button", name="Add a variable").click()
                page.keyboard.type("LABELS")
                part.get_by_label("Value of variable 1").fill("digits")
                page.wait_for_timeout(1500)
                part.evaluate("part => scrollTo(0, part.offsetTop - 330)")
                page.wait_for_timeout(500)
                page.screenshot(path=out / "console-processes.png")
                page.goto(f"http://{server.http}/console#/measure/{job}")
                expect(page.locator(".report")).to_be_visible(timeout=60_000)
                page.set_viewport_size({"width": 1440, "height": 1010})
                page.wait_for_timeout(500)
                page.screenshot(path=out / "console-measure.png")
                page.set_viewport_size({"width": 1440, "height": 936})
                page.goto(f"http://{server.http}/console#/playground/digits")
                draw(page, SEVEN)
                page.get_by_label("Trace the request").check()
                page.get_by_role("button", name="Send").click()
                expect(page.get_by_role("img", name="Trace of digits")).to_be_visible()
                page.screenshot(path=out / "console-playground.png")
                page.set_viewport_size({"width": 1440, "height": 700})
                page.goto(f"http://{server.http}/console#/watch/add_sub")
                page.wait_for_timeout(HISTORY_MS)
                page.screenshot(path=out / "console-watch.png")
            finally:
                stopped.set()
                thread.join()
        shoot_router(browser, Path(folder), Path(folder))
        shutil.copy(Path(folder) / "nodes-light-1440.png", out / "console-nodes.png")
        browser.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--docs"]:
        shoot_docs(EXAMPLES.parents[1] / "docs" / "images")
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
