"""CUDA regions through the helper process, with a driver of paper: copies in pieces, crashes,
hangs, and its end with the last region."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError
from naiad.shm.cuda_proxy import CudaHelper
from naiad.shm.cuda_region import CudaRegion, open_cuda_region
from naiad.shm.region_table import RegionTable
from tests.unit.shm.fake_cuda_process import handle_of

PIECE = 4096
COMMAND = [sys.executable, "-m", "tests.unit.shm.fake_cuda_process"]
LOST = "the GPU memory of shared memory region 'c' was lost; register it again"


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])


@pytest.fixture
def helper() -> Iterator[CudaHelper]:
    made = CudaHelper(COMMAND, reply_limit_s=20, memory_bytes=PIECE)
    yield made
    made.stop()


def open_region(
    helper: CudaHelper, kind: str = "M", num_bytes: int = 3 * PIECE, byte_size: int = 0
) -> CudaRegion:
    return open_cuda_region(helper, "c", handle_of(kind, num_bytes), 0, byte_size or num_bytes)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_reading_and_writing_in_pieces(helper: CudaHelper) -> None:
    region = open_region(helper)
    data = os.urandom(2 * PIECE + 100)
    region.write(50, data)
    assert region.read(50, len(data)) == data
    buffer = memoryview(bytearray(10))
    region.read_into(50 + PIECE, buffer)
    assert bytes(buffer) == data[PIECE : PIECE + 10]
    assert region.describe() == {"name": "c", "device_id": 0, "byte_size": 3 * PIECE}


def test_nothing_at_all(helper: CudaHelper) -> None:
    region = open_region(helper)
    region.write(0, b"")
    assert region.read(0, 0) == b""


@pytest.mark.parametrize("byte_size", [3 * PIECE + 1, 2**64 - 1])
def test_more_than_there_is(helper: CudaHelper, byte_size: int) -> None:
    with pytest.raises(NaiadError) as caught:
        open_region(helper, byte_size=byte_size)
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "failed to register shared memory region 'c': invalid args",
    )
    assert helper.pid == 0


def test_a_handle_that_the_driver_refuses(helper: CudaHelper) -> None:
    """The driver's words are for the log."""
    with pytest.raises(NaiadError) as caught:
        open_region(helper, "E")
    assert caught.value.message == "failed to register shared memory region: invalid args"
    assert helper.pid == 0


def test_no_driver_at_all() -> None:
    helper = CudaHelper()
    with pytest.raises(NaiadError) as caught:
        open_cuda_region(helper, "c", bytes(64), 0, 16)
    assert caught.value.message == "failed to register shared memory region: invalid args"
    assert helper.pid == 0


def test_the_process_ends_with_the_last_region(helper: CudaHelper) -> None:
    first, second = open_region(helper), open_region(helper)
    pid = helper.pid
    helper.close(first._number)
    assert helper.pid == pid
    assert second.read(0, 1) == b"\0"
    helper.close(second._number)
    helper.close(second._number)
    assert helper.pid == 0
    assert not is_alive(pid)
    assert open_region(helper).read(0, 4) == bytes(4)


@pytest.mark.parametrize("kind", ["X", "I"])
def test_a_crash_costs_the_regions_and_nothing_else(helper: CudaHelper, kind: str) -> None:
    good, bad = open_region(helper), open_region(helper, kind)
    pid = helper.pid
    with pytest.raises(NaiadError, match=LOST):
        bad.read(0, 4)
    assert not is_alive(pid)
    for use in (lambda: good.read(0, 4), lambda: good.write(0, b"x")):
        with pytest.raises(NaiadError, match=LOST):
            use()
    helper.close(good._number)
    assert open_region(helper).read(0, 4) == bytes(4)


def test_a_driver_that_hangs_is_killed(helper: CudaHelper) -> None:
    region = open_region(helper, "H")
    pid = helper.pid
    assert helper._sock is not None
    helper._sock.settimeout(0.01)
    with pytest.raises(NaiadError, match=LOST):
        region.read(0, 4)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("raw_handle", "device_id"),
    [(b"short", 0), (bytes(65), 0), (bytes(64), -1), (bytes(64), 1 << 40)],
)
async def test_what_the_driver_is_not_even_asked(raw_handle: bytes, device_id: int) -> None:
    def open_cuda(*arguments: object) -> CudaRegion:
        raise AssertionError("asked")

    table = RegionTable(is_allowed=True, open_cuda=open_cuda)
    with pytest.raises(
        NaiadError, match="failed to register shared memory region 'c': invalid args"
    ):
        await table.register_cuda("c", raw_handle, device_id, 16)
