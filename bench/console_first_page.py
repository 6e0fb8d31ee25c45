"""How long the console's first page takes in chromium on loopback, and how many bytes it is.

In:  nothing; it starts a server with the examples, and a browser. Out: the median and the slowest
     of the rounds, each in a browser profile of its own, so that nothing is cached: the time from
     the start of the navigation until the first row of the list is on the screen, as chromium's
     navigation timing counts it, and the bytes that the server sent.
Use: `python -m bench.console_first_page [--rounds 15]`. It needs `pip install --group browser` and
     Debian's chromium (or CHROMIUM, its path).
"""

from __future__ import annotations

import argparse
import statistics

import msgspec
from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import CHROMIUM, EXAMPLES
from tests.server.harness import Server, naiad

MAX_SECONDS = 0.5
MAX_BYTES = 150_000
_WAIT_FOR_ROW = "() => document.querySelector('tbody tr') !== null"
_READ = """() => new Promise(resolve => requestAnimationFrame(() => setTimeout(() => {
  const entries = [...performance.getEntriesByType("navigation"),
    ...performance.getEntriesByType("resource")];
  const files = entries.filter(entry => !entry.name.includes("/api/"));
  resolve({
    first_row_ms: performance.now(),
    response_ms: entries[0].responseEnd,
    content_ms: entries[0].domContentLoadedEventEnd,
    num_bytes: files.reduce((sum, entry) => sum + entry.transferSize, 0),
    num_files: files.length,
  });
})))"""
"""Runs after the frame that shows the row."""


class FirstPage(msgspec.Struct, frozen=True):
    first_row_ms: float
    """Until the list of models is on the screen."""
    response_ms: float
    """Until the page itself has arrived."""
    content_ms: float
    """Until the scripts have run."""
    num_bytes: int
    num_files: int


def open_once(browser: Browser, server: Server) -> FirstPage:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.goto(f"http://{server.http}/console", wait_until="commit")
        page.wait_for_function(_WAIT_FOR_ROW, polling="raf")
        return msgspec.convert(page.evaluate(_READ), FirstPage, strict=False)
    finally:
        context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    flags = ["--model-control-mode=explicit", "--load-model=add_sub", "--load-model=digits"]
    with naiad([str(EXAMPLES)], flags) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        open_once(browser, server)  # the browser's own start
        pages = [open_once(browser, server) for _ in range(options.rounds)]
        browser.close()
    for field, title in (
        ("response_ms", "page received"),
        ("content_ms", "scripts have run"),
        ("first_row_ms", "list on the screen"),
    ):
        times = [getattr(page, field) for page in pages]
        print(f"{title:20} median {statistics.median(times):6.0f} ms, slowest {max(times):6.0f} ms")
    num_bytes = max(page.num_bytes for page in pages)
    median_s = statistics.median(page.first_row_ms for page in pages) / 1e3
    print(f"{pages[0].num_files} files, {num_bytes} bytes with their heads")
    is_good = median_s < MAX_SECONDS and num_bytes < MAX_BYTES
    print(f"limits: {MAX_SECONDS} s, {MAX_BYTES} bytes: {'met' if is_good else 'MISSED'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
