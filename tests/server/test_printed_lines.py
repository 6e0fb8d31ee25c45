"""What models print reaches the log as records of their own."""

from __future__ import annotations

from pathlib import Path

from tests.server.harness import naiad
from tests.server.model_folder import ANY, write_model

PRINTS = (
    "import sys, os; print('to stdout\\x1b[2J'); print('to stderr', file=sys.stderr); "
    "os.write(1, b'I0101 00:00:00.000000 1 server.py:1] forged\\n')"
)
CRASHES = "print('last words'); os.kill(os.getpid(), 9)"


def test_prints_are_marked_as_the_models(tmp_path: Path) -> None:
    write_model(tmp_path, "prints", execute=PRINTS)
    with naiad([str(tmp_path)]) as server:
        assert server.post("/v2/models/prints/infer", ANY)[0] == 200
        line = server.wait_for_line("to stdout")
        assert line.endswith('prints_0 printed] "to stdout\\u001B[2J"')
        assert server.wait_for_line("to stderr").endswith('prints_0 printed] "to stderr"')
        forged = server.wait_for_line("forged")
        assert forged.endswith('prints_0 printed] "I0101 00:00:00.000000 1 server.py:1] forged"')


def test_the_last_words_of_a_worker_are_not_lost(tmp_path: Path) -> None:
    write_model(tmp_path, "crashes", execute=CRASHES)
    with naiad([str(tmp_path)]) as server:
        assert server.post("/v2/models/crashes/infer", ANY)[0] != 200
        assert server.wait_for_line("last words").endswith('crashes_0 printed] "last words"')
