"""What keeps a process from being forked, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAD = """
import numpy, os, subprocess, sys, threading, time, types
from naiad.worker.fork_safety import open_files, unsafe_to_fork
before = open_files()
"""
NATIVE_THREAD = """
import _thread
_thread.start_new_thread(time.sleep, (60,))
"""
CUDA = """
sys.modules["torch"] = types.SimpleNamespace(
    cuda=types.SimpleNamespace(is_initialized=lambda: True)
)
"""


def judge(left_behind: str) -> str:
    script = f"{HEAD}{left_behind}\nprint(unsafe_to_fork(before), flush=True)\nos._exit(0)"
    command = [sys.executable, "-c", script]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return finished.stdout.strip()


@pytest.mark.parametrize(
    "left_behind",
    [
        "",
        "file = open('/dev/null')",
        # The threads of OpenBLAS end before a fork.
        "numpy.ones((512, 512)) @ numpy.ones((512, 512))",
        "thread = threading.Thread(target=print); thread.start(); thread.join()",
    ],
)
def test_safe(left_behind: str) -> None:
    assert judge(left_behind) == ""


@pytest.mark.parametrize(
    ("left_behind", "reason"),
    [
        ("file = open(os.__file__)", f"the imports left {os.__file__} open"),
        ("pipe = os.pipe()", "the imports left pipe:["),
        ("os.dup2(os.open(os.__file__, os.O_RDONLY), 2)", "the imports left "),
        ("p = subprocess.Popen(['sleep', '1'])", "the imports started a process"),
        (
            "threading.Thread(target=time.sleep, args=(60,), name='ticker', daemon=True).start()",
            "the imports started the thread 'ticker'",
        ),
        (NATIVE_THREAD, "the imports left 1 threads running"),
        (CUDA, "the imports initialized CUDA"),
    ],
)
def test_unsafe(left_behind: str, reason: str) -> None:
    assert judge(left_behind).startswith(reason)
