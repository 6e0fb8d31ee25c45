"""A server that was started from a terminal is not stopped by a model that reads from it or prints
to it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.server.harness import launch_naiad
from tests.server.model_folder import ANY, write_model

ON_A_TERMINAL = """
import fcntl, os, sys, termios
ours, terminal = os.openpty()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
settings = termios.tcgetattr(terminal)
settings[3] |= termios.TOSTOP
termios.tcsetattr(terminal, termios.TCSANOW, settings)
os.set_inheritable(ours, True)
os.environ["TERMINAL"] = os.ttyname(terminal)
os.execvp(sys.argv[1], sys.argv[1:])
"""
ASKS = (
    "import subprocess; "
    "subprocess.run(['sh', '-c', 'read password < /dev/tty'], stderr=subprocess.DEVNULL); "
    "subprocess.run(['sh', '-c', 'echo loaded > $TERMINAL'], check=True)"
)


def test_serves_a_model_that_reads_from_the_terminal(tmp_path: Path) -> None:
    write_model(tmp_path, "asks", initialize=ASKS)
    server = launch_naiad([str(tmp_path)], prefix=[sys.executable, "-c", ON_A_TERMINAL])
    try:
        server.wait_started(60)
        status, body = server.post("/v2/models/asks/infer", ANY)
        assert (status, b"asks" in body) == (200, True)
    finally:
        server.stop()
