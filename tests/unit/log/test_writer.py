import os
import threading

import pytest

from naiad.log.writer import LogWriter


def loss(count: int) -> bytes:
    return b"lost %d\n" % count


def writing_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "naiad-log"}


def read_until(descriptor: int, end: bytes) -> bytes:
    data = b""
    while end not in data:
        data += os.read(descriptor, 1 << 16)
    return data


def test_a_stalled_reader_blocks_nothing_and_the_loss_is_reported() -> None:
    read_end, write_end = os.pipe()
    writer = LogWriter(loss, max_queued_bytes=1 << 20)
    line = b"x" * 999 + b"\n"
    for _ in range(3000):  # 3 MB into a pipe of 64 KiB without a reader
        writer.put(write_end, line)
    assert writer.num_dropped > 1000
    assert not writer.flush(0)
    data = read_until(read_end, b"lost ")
    data += read_until(read_end, b"\n") if not data.endswith(b"\n") else b""
    assert data.count(line) + writer.num_dropped == 3000
    assert int(data.split(b"lost ")[1].split(b"\n")[0]) == writer.num_dropped
    assert writer.flush(60)
    writer.put(write_end, b"after\n")
    assert read_until(read_end, b"after\n").endswith(b"after\n")
    assert writer.flush(60)
    os.close(read_end)
    os.close(write_end)


def test_keeps_the_order_across_destinations() -> None:
    (read_a, write_a), (read_b, write_b) = os.pipe(), os.pipe()
    writer = LogWriter(loss)
    for number in range(100):
        writer.put((write_a, write_b)[number % 2], b"%d\n" % number)
    assert writer.flush(60)
    assert [int(x) for x in os.read(read_a, 1 << 16).split()] == list(range(0, 100, 2))
    assert [int(x) for x in os.read(read_b, 1 << 16).split()] == list(range(1, 100, 2))
    for descriptor in (read_a, write_a, read_b, write_b):
        os.close(descriptor)


def test_a_nonblocking_destination_gets_every_byte() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    writer = LogWriter(loss)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(read_until(read_end, b"end\n")))
    reader.start()
    writer.put(write_end, b"x" * (1 << 20) + b"\nend\n")
    reader.join(60)
    assert len(received[0]) == (1 << 20) + 5
    assert writer.flush(60)
    os.close(read_end)
    os.close(write_end)


def test_many_threads_may_log_and_only_one_thread_writes() -> None:
    read_end, write_end = os.pipe()
    writer = LogWriter(loss)
    before = writing_threads()
    start = threading.Barrier(8)

    def put() -> None:
        start.wait()
        for _ in range(50):
            writer.put(write_end, b"line\n")

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(60)
    assert os.read(read_end, 1 << 16) == b"line\n" * 400
    assert len(writing_threads() - before) == 1
    os.close(read_end)
    os.close(write_end)


def test_counts_lines_for_a_closed_descriptor_as_dropped() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    writer = LogWriter(loss)
    writer.put(write_end, b"a\n")
    writer.put(write_end, b"b\n")
    assert writer.flush(60)
    assert writer.num_dropped == 2
    os.close(write_end)


def test_a_file_that_takes_nothing_is_told_once_on_the_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(loss)
    for _ in range(3):
        writer.put(full, b"a line\n")
        assert writer.flush(60)
    assert capfd.readouterr().err == (
        "the log file cannot be written: No space left on device; lines are lost until it can\n"
    )
    read_end, write_end = os.pipe()
    os.dup2(write_end, full)
    writer.put(full, b"a line\n")
    assert writer.flush(60)
    with open("/dev/full", "wb") as again:
        os.dup2(again.fileno(), full)
    writer.put(full, b"a line\n")
    assert writer.flush(60)
    assert "cannot be written" in capfd.readouterr().err
    assert writer.num_dropped == 4
    for descriptor in (full, read_end, write_end):
        os.close(descriptor)
