"""CUDA regions with a fake driver: copies in pieces, crashes, hangs, and the end of the process
with the last region."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError, internal
from naiad.shm.cuda_proxy import CudaProxy
from naiad.shm.cuda_region import CudaRegion, open_cuda_region
from naiad.shm.region_table import RegionTable
from tests.unit.shm.fake_cuda_process import handle_of

PIECE = 4096
COMMAND = [sys.executable, "-m", "tests.unit.shm.fake_cuda_process"]
CANNOT_OPEN = "failed to register shared memory region: invalid args"
LOST = "the GPU memory of shared memory region 'c' was lost; register it again"


_NONSENSE = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
sock.recv(1 << 16)
sock.send(b"nonsense")
"""


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])


@pytest.fixture
def proxy() -> Iterator[CudaProxy]:
    made = CudaProxy(COMMAND, reply_limit_s=20, memory_bytes=PIECE)
    yield made
    made.stop()


def open_region(
    proxy: CudaProxy, kind: str = "M", num_bytes: int = 3 * PIECE, byte_size: int = 0
) -> CudaRegion:
    return open_cuda_region(proxy, "c", handle_of(kind, num_bytes), 0, byte_size or num_bytes)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_reads_and_writes_in_pieces(proxy: CudaProxy) -> None:
    region = open_region(proxy)
    data = os.urandom(2 * PIECE + 100)
    region.write(50, data)
    assert region.read(50, len(data)) == data
    buffer = memoryview(bytearray(10))
    region.read_into(50 + PIECE, buffer)
    assert bytes(buffer) == data[PIECE : PIECE + 10]
    assert region.describe() == {"name": "c", "device_id": 0, "byte_size": 3 * PIECE}


def test_reads_and_writes_zero_bytes(proxy: CudaProxy) -> None:
    region = open_region(proxy)
    region.write(0, b"")
    assert region.read(0, 0) == b""


@pytest.mark.parametrize("byte_size", [3 * PIECE + 1, 2**64 - 1])
def test_rejects_a_size_beyond_the_allocation(proxy: CudaProxy, byte_size: int) -> None:
    with pytest.raises(NaiadError) as caught:
        open_region(proxy, byte_size=byte_size)
    assert (caught.value.code, caught.value.message) == (
        Code.INVALID_ARG,
        "failed to register shared memory region 'c': invalid args",
    )
    assert proxy.pid == 0


def test_rejects_a_handle_that_the_driver_rejects(proxy: CudaProxy) -> None:
    """Only the log shows the driver's message."""
    with pytest.raises(NaiadError) as caught:
        open_region(proxy, "E")
    assert caught.value.message == CANNOT_OPEN
    assert proxy.pid == 0


def test_rejects_regions_without_a_driver() -> None:
    proxy = CudaProxy()
    with pytest.raises(NaiadError) as caught:
        open_cuda_region(proxy, "c", bytes(64), 0, 16)
    assert caught.value.message == CANNOT_OPEN
    assert proxy.pid == 0


@pytest.mark.parametrize("fault", [OSError(24, "Too many open files"), internal("it is gone")])
def test_every_reason_looks_the_same_to_clients(
    fault: Exception, proxy: CudaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise fault

    monkeypatch.setattr(proxy, "_start", fail)
    with pytest.raises(NaiadError) as caught:
        open_region(proxy)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, CANNOT_OPEN)


def test_a_process_that_replies_nonsense_cannot_open_a_region() -> None:
    proxy = CudaProxy([sys.executable, "-c", _NONSENSE], reply_limit_s=20, memory_bytes=PIECE)
    with pytest.raises(NaiadError) as caught:
        open_region(proxy)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, CANNOT_OPEN)
    proxy.stop()


def test_the_process_ends_with_the_last_region(proxy: CudaProxy) -> None:
    first, second = open_region(proxy), open_region(proxy)
    pid = proxy.pid
    proxy.close(first._key)
    assert proxy.pid == pid
    assert second.read(0, 1) == b"\0"
    proxy.close(second._key)
    proxy.close(second._key)
    assert proxy.pid == 0
    assert not is_alive(pid)
    assert open_region(proxy).read(0, 4) == bytes(4)


@pytest.mark.parametrize("kind", ["X", "I"])
def test_a_crash_only_loses_the_regions(proxy: CudaProxy, kind: str) -> None:
    good, bad = open_region(proxy), open_region(proxy, kind)
    pid = proxy.pid
    with pytest.raises(NaiadError, match=LOST):
        bad.read(0, 4)
    assert not is_alive(pid)
    for use in (lambda: good.read(0, 4), lambda: good.write(0, b"x")):
        with pytest.raises(NaiadError, match=LOST):
            use()
    proxy.close(good._key)
    assert open_region(proxy).read(0, 4) == bytes(4)


def test_kills_a_process_whose_driver_hangs(proxy: CudaProxy) -> None:
    region = open_region(proxy, "H")
    pid = proxy.pid
    assert proxy._sock is not None
    proxy._sock.settimeout(0.01)
    with pytest.raises(NaiadError, match=LOST):
        region.read(0, 4)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("raw_handle", "device_id"),
    [(b"short", 0), (bytes(65), 0), (bytes(64), -1), (bytes(64), 1 << 40)],
)
async def test_rejects_bad_handles_and_devices_without_the_driver(
    raw_handle: bytes, device_id: int
) -> None:
    def open_cuda(*arguments: object) -> CudaRegion:
        raise AssertionError("asked")

    table = RegionTable(is_allowed=True, open_cuda=open_cuda)
    with pytest.raises(NaiadError) as caught:
        await table.register_cuda("c", raw_handle, device_id, 16)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, CANNOT_OPEN)
