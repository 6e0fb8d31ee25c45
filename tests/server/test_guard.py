"""The guard ends the servers of tests that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.server.harness import ROOT, process_state, wait_gone

TESTS = """
import subprocess, sys, threading
from tests.server.harness import Server

def start():
    code = "import time; print('up', flush=True); time.sleep(3600)"
    return Server([sys.executable, "-c", code], (0, 0, 0))

ended, left = start(), start()
starter = threading.Thread(target=lambda: servers.append(start()))
servers = []
starter.start()
starter.join()
for server in (ended, left, *servers):
    server.wait_for_line("up")
ended.signal(9)
ended.stop()
print(left.pid, servers[0].pid, flush=True)
input()
"""


def test_servers_end_with_the_tests_that_started_them() -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert tests.stdin is not None
    assert tests.stdout is not None
    with tests.stdin, tests.stdout:
        pids = [int(word) for word in tests.stdout.readline().split()]
        assert all(process_state(pid) not in ("", "Z") for pid in pids)
        os.kill(tests.pid, signal.SIGKILL)
        tests.wait()
    assert len(pids) == 2
    assert wait_gone(pids) == []
