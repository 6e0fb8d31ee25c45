"""Runs the shell and Python blocks of the pages in a fresh clone: `make docs-run`.

`python -m tests.docs.run` runs all pages, `python -m tests.docs.run README.md docs/keys.md` some.
All shell blocks of a page run in one bash, one after the other, as a reader pastes them: variables,
folders and servers in the background last until the end of the page. A block fails when a command
of it fails, or when curl gets a status of 400 or more and does not print it (`-w`). After a block
that starts a server in the background the next one waits until that server is ready. A text block
marked `output` must equal what the block before it printed; a line `...` stands for any lines.
Rule: the ports that the pages name (8000 and so on) must be free, so nothing else may use them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.blocks import MARKS, OUTPUT, PAGES, ROOT, Block, Page, read_page

_BLOCK_S = 180.0
_READY_S = 120.0
_SERVE = "naiad serve --model-repository examples/repository --model smollm2"
_PRELUDE = """\
set -euo pipefail
curl() {
  case " $* " in *" -w "*) command curl "$@" ;; *) command curl --fail-with-body "$@" ;; esac
}
"""
_SERVERS = re.compile(r"(?:naiad (?:serve|router)|tritonserver)\b(?:[^\n&]|\\\n|&&)*&\s*$", re.M)
_PORT = re.compile(r"--http-port[ =](\d+)")


@dataclass
class Outcome:
    ran: int = 0
    marked: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Shell:
    """One bash for a page. Each block is a file that it sources."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._scratch = scratch
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
        }
        for name in [name for name in environment if name.startswith(("NAIAD_", "MAKE"))]:
            del environment[name]
        self._bash = subprocess.Popen(
            ["bash", "-s"],
            stdin=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._count = 0
        assert self.run(_PRELUDE) == ("", "")

    def run(self, text: str) -> tuple[str, str]:
        """Returns what the block printed, and "" or why it failed."""
        self._count += 1
        name = self._scratch / str(self._count)
        script, out, err, done = (name.with_suffix(s) for s in (".sh", ".out", ".err", ".done"))
        script.write_text(text + "\n")
        assert self._bash.stdin is not None
        try:
            self._bash.stdin.write(f". {script} >{out} 2>{err} </dev/null; touch {done}\n")
            self._bash.stdin.flush()
        except BrokenPipeError:
            return "", "the shell has ended: a block before this one failed"
        limit_s = time.monotonic() + _BLOCK_S
        while not done.exists():
            if self._bash.poll() is not None:
                return _read(out), f"a command failed: {(_read(err) + _read(out)).strip()[-600:]}"
            if time.monotonic() > limit_s:
                return _read(out), f"no end after {_BLOCK_S:.0f} s: {_read(err).strip()[-300:]}"
            time.sleep(0.02)
        return _read(out), ""

    def end(self) -> None:
        """Ends the shell with everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._bash.wait(20)
        deadline = time.monotonic() + 20
        while _is_group_alive(self._bash.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _await_server(port: str) -> str:
    limit_s = time.monotonic() + _READY_S
    while time.monotonic() < limit_s:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return ""
        except OSError:
            pass
        else:
            return ""
        time.sleep(0.1)
    return f"the server on port {port} was not ready after {_READY_S:.0f} s"


def _await_servers(text: str) -> str:
    for command in _SERVERS.findall(text):
        port = _PORT.search(command)
        problem = _await_server(port[1] if port else "8000")
        if problem:
            return problem
    return ""


def _equals(expected: str, printed: str) -> bool:
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line.rstrip()) + r"[ \t]*\n"
        for line in expected.rstrip("\n").split("\n")
    )
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None


def run_page(page: Page, clone: Path, outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory() as scratch, _copy(clone) as folder:
        shell = Shell(folder, Path(scratch))
        try:
            if page.needs_server:
                shell.run(f"{_SERVE} >{scratch}/serve.log 2>&1 &")
                problem = _await_server("8000")
                if problem:
                    log = _read(Path(scratch) / "serve.log")[-600:]
                    outcome.failures.append(f"{page.name}: {problem}: {log}")
                    return
            printed = ""
            for block in page.blocks:
                if block.mark in MARKS:
                    outcome.marked[block.mark] += 1
                elif block.mark == OUTPUT:
                    if not _equals(block.text, printed):
                        outcome.failures.append(f"{block.place}: it printed\n{printed}")
                elif block.language in ("sh", "python"):
                    printed = _run_block(block, shell, Path(scratch), outcome)
        finally:
            shell.end()


def _run_block(block: Block, shell: Shell, scratch: Path, outcome: Outcome) -> str:
    text = block.text
    if block.language == "python":
        script = scratch / f"line{block.line}.py"
        script.write_text(text + "\n")
        text = f"python {script}"
    started = time.monotonic()
    printed, problem = shell.run(text)
    problem = problem or _await_servers(block.text)
    outcome.ran += 1
    if problem:
        outcome.failures.append(f"{block.place}: {problem}")
    state = "FAILED" if problem else "ok"
    print(f"{state:6} {time.monotonic() - started:6.1f} s  {block.place}", flush=True)
    return printed


@contextlib.contextmanager
def _copy(clone: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "naiad"
        shutil.copytree(clone, copy, symlinks=True)
        yield copy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("pages", nargs="*", help="pages to run; all by default")
    wanted = {Path(name).resolve() for name in parser.parse_args().pages}
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "naiad"
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        for path in PAGES:
            page = read_page(path)
            if (not wanted or path in wanted) and page.blocks:
                run_page(page, clone, outcome)
    for failure in outcome.failures:
        print(f"\n{failure}")
    marked = ", ".join(f"{count} {mark}" for mark, count in sorted(outcome.marked.items()))
    print(
        f"\n{outcome.ran} blocks ran, {len(outcome.failures)} failed; not run: {marked or 'none'}"
    )
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
