"""What SIGHUP reads again."""

from __future__ import annotations

import pytest

from naiad import log
from naiad.core.reread import Reread


def test_runs_every_subscriber_although_one_fails(capfd: pytest.CaptureFixture[str]) -> None:
    reread, order = Reread(), []

    def fail() -> None:
        order.append("keys")
        raise OSError("no such file")

    reread.subscribe("the log file", lambda: order.append("log"))
    reread.subscribe("the keys", fail)
    reread.subscribe("the certificates", lambda: order.append("certificates"))
    reread.run()
    reread.run()
    log.flush(10)
    out, err = capfd.readouterr()
    assert order == ["log", "keys", "certificates"] * 2
    assert "SIGHUP: reading the log file, the keys, the certificates again" in out
    assert "cannot read the keys again, the old state stays: no such file" in err
