"""Lines that a worker prints become records of the log."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator

import pytest

from naiad import log
from naiad.instances import printed_lines
from naiad.instances.printed_lines import PrintedLines
from naiad.log import LogSettings


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    log.configure(LogSettings())
    yield
    assert log.flush(10)
    log.configure(LogSettings())


class Pipe:
    def __init__(self) -> None:
        self.now_s = 0.0
        reader, self.writer = os.pipe()
        self.printed = PrintedLines(
            asyncio.get_running_loop(), reader, "add_sub_0", 4242, lambda: self.now_s
        )

    def write(self, data: bytes) -> None:
        assert os.write(self.writer, data) == len(data)

    def close(self) -> None:
        os.close(self.writer)
        self.printed.close()


def records(capfd: pytest.CaptureFixture[str]) -> list[str]:
    assert log.flush(10)
    out, err = capfd.readouterr()
    return [re.sub(r"^(.)\d{4} [\d:.]+ ", r"\1 ", line) for line in (out + err).splitlines()]


async def test_each_line_is_marked_and_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    pipe = Pipe()
    pipe.write(b"one\nI0101 00:00:00.000000 1 server.py:1] forged\n\x1b[31mred\r\nhal")
    pipe.write("f é\n".encode() + b"\xff\xfe without end")
    pipe.close()
    assert records(capfd) == [
        'I 4242 add_sub_0 printed] "one"',
        'I 4242 add_sub_0 printed] "I0101 00:00:00.000000 1 server.py:1] forged"',
        'I 4242 add_sub_0 printed] "\\u001B[31mred"',
        'I 4242 add_sub_0 printed] "half é"',
        'I 4242 add_sub_0 printed] "\\\\xff\\\\xfe without end"',
    ]


async def test_a_long_line_becomes_several_records(capfd: pytest.CaptureFixture[str]) -> None:
    pipe = Pipe()
    pipe.write(b"x" * (2 * printed_lines.MAX_LINE_BYTES + 5) + b"\ny\n")
    pipe.close()
    lengths = [len(re.sub(r'^.*?"|"$', "", line)) for line in records(capfd)]
    assert lengths == [printed_lines.MAX_LINE_BYTES, printed_lines.MAX_LINE_BYTES, 5, 1]


async def test_too_many_lines_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    pipe = Pipe()
    num_lines = printed_lines.BURST_BYTES // printed_lines.LINE_BYTES
    for _ in range(num_lines // 1000 + 2):
        pipe.write(b"x\n" * 1000)
        pipe.printed._on_readable()
    pipe.now_s += 60
    pipe.write(b"last\n")
    pipe.close()
    lines = records(capfd)
    num_dropped = (num_lines // 1000 + 2) * 1000 - num_lines
    assert lines.count('I 4242 add_sub_0 printed] "x"') == num_lines
    assert 'I 4242 add_sub_0 printed] "last"' in lines
    assert any(
        f"{num_dropped} lines that 'add_sub_0' printed were dropped" in line for line in lines
    )


async def test_a_flood_is_read_less_often() -> None:
    pipe = Pipe()
    pipe.printed._budget_bytes = -1.0
    pipe.write(b"x\n")
    pipe.printed._on_readable()
    assert pipe.printed._pause is not None
    pipe.close()


async def test_json_records_name_the_instance(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(LogSettings(log_json=True))
    pipe = Pipe()
    pipe.write(b'{"severity":"ERROR"}\n')
    pipe.close()
    (line,) = records(capfd)
    assert '"message":"{\\"severity\\":\\"ERROR\\"}"' in line
    assert line.endswith('"instance":"add_sub_0"}')
