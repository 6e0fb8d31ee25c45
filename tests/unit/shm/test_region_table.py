"""The table of registered regions: names, kinds, leases of requests, unregistering a region in use,
CUDA without a GPU."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial

import pytest

from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import Code, NaiadError
from naiad.shm.region import CUDA, SYSTEM
from naiad.shm.region_table import DISABLED, RegionTable
from tests.unit.shm.shared_object import SharedObject, shared_object


class FakeCudaRegion:
    kind = CUDA
    is_slow = True

    def __init__(self, name: str, device_id: int, byte_size: int) -> None:
        self.name = name
        self.byte_size = byte_size
        self._device_id = device_id
        self.is_closed = False

    def describe(self) -> dict[str, str | int]:
        return {"name": self.name, "device_id": self._device_id, "byte_size": self.byte_size}

    def read(self, offset: int, num_bytes: int) -> bytes:
        return bytes(num_bytes)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        pass

    def write(self, offset: int, data: Buffer) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def open_fake(name: str, raw_handle: bytes, device_id: int, byte_size: int) -> FakeCudaRegion:
    return FakeCudaRegion(name, device_id, byte_size)


@pytest.fixture
def table() -> Iterator[RegionTable]:
    made = RegionTable(is_allowed=True, open_cuda=open_fake)
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(bytes(range(256)) * 16) as made:
        yield made


def use(*slices: RegionSlice, **outputs: RegionSlice) -> RegionUse:
    return RegionUse(list(enumerate(slices)), outputs)


def names(table: RegionTable, kind: str = SYSTEM) -> list[str]:
    return [region.name for region in table.status(kind)]


def error_of(action: object) -> tuple[Code, str]:
    with pytest.raises(NaiadError) as caught:
        action()  # type: ignore[operator]
    return caught.value.code, caught.value.message


def test_client_shared_memory_is_off_by_default(memory: SharedObject) -> None:
    table = RegionTable()
    assert error_of(lambda: table.register_system("r", memory.key, 0, 16)) == (
        Code.UNSUPPORTED,
        DISABLED,
    )
    assert error_of(lambda: table.lease(use(RegionSlice("r", 0, 1)))) == (
        Code.UNSUPPORTED,
        DISABLED,
    )
    assert error_of(lambda: asyncio.run(table.register_cuda("c", bytes(64), 0, 1))) == (
        Code.UNSUPPORTED,
        DISABLED,
    )
    assert table.status(SYSTEM) == []
    for kind, name in ((SYSTEM, ""), (CUDA, ""), (SYSTEM, "r")):
        assert error_of(partial(table.unregister, kind, name)) == (Code.UNSUPPORTED, DISABLED)


def test_register_status_unregister(table: RegionTable, memory: SharedObject) -> None:
    table.register_system("b", memory.key, 0, 16)
    table.register_system("a", memory.key, 16, 16)
    assert names(table) == ["a", "b"]
    assert [region.describe()["offset"] for region in table.status(SYSTEM, "a")] == [16]
    table.unregister(SYSTEM, "a")
    table.unregister(SYSTEM, "a")
    assert names(table) == ["b"]
    table.unregister(SYSTEM)
    assert names(table) == []


def test_a_region_belongs_to_the_key_that_registered_it(
    table: RegionTable, memory: SharedObject
) -> None:
    table.register_system("r", memory.key, 0, 16, "alice")
    table.register_system("r", memory.key, 16, 16, "bob")
    assert [region.describe()["offset"] for region in table.status(SYSTEM, "", "bob")] == [16]
    assert table.status(SYSTEM) == []
    missing = (Code.NOT_FOUND, "Unable to find system shared memory region: 'r'")
    assert error_of(lambda: table.status(SYSTEM, "r", "carol")) == missing
    slice_of_r = use(RegionSlice("r", 0, 1))
    assert error_of(lambda: table.lease(slice_of_r, "carol"))[0] is Code.NOT_FOUND
    table.lease(slice_of_r, "alice").close()
    table.unregister(SYSTEM, "", "bob")
    table.unregister(SYSTEM, "r", "carol")
    assert [region.name for region in table.status(SYSTEM, "", "alice")] == ["r"]
    assert table.status(SYSTEM, "", "bob") == []


def test_rejects_a_name_that_is_already_registered(
    table: RegionTable, memory: SharedObject
) -> None:
    table.register_system("r", memory.key, 0, 16)
    message = (Code.ALREADY_EXISTS, "shared memory region 'r' already in manager")
    assert error_of(lambda: table.register_system("r", memory.key, 0, 16)) == message


@pytest.mark.parametrize("name", ["", "n" * 1025])
def test_rejects_empty_and_long_names(table: RegionTable, memory: SharedObject, name: str) -> None:
    assert error_of(lambda: table.register_system(name, memory.key, 0, 16))[0] is Code.INVALID_ARG


def test_limits_the_number_of_regions(table: RegionTable, memory: SharedObject) -> None:
    table._max_regions = 2
    table.register_system("a", memory.key, 0, 16)
    table.register_system("b", memory.key, 0, 16)
    assert error_of(lambda: table.register_system("c", memory.key, 0, 16))[0] is Code.UNAVAILABLE


class TestKinds:
    async def test_registers_cuda_regions(self, table: RegionTable, memory: SharedObject) -> None:
        await table.register_cuda("c", bytes(64), 2, 100)
        table.register_system("s", memory.key, 0, 16)
        assert names(table, CUDA) == ["c"]
        assert table.status(CUDA, "c")[0].describe() == {
            "name": "c",
            "device_id": 2,
            "byte_size": 100,
        }
        assert error_of(lambda: table.status(SYSTEM, "c")) == (
            Code.NOT_FOUND,
            "The region named 'c' is registered as CUDA shared memory, not system shared memory",
        )
        assert error_of(lambda: table.status(CUDA, "s")) == (
            Code.NOT_FOUND,
            "The region named 's' is registered as system shared memory, not CUDA shared memory",
        )
        table.unregister(SYSTEM, "c")
        table.unregister(CUDA, "s")
        table.unregister(CUDA)
        assert (names(table), names(table, CUDA)) == (["s"], [])

    def test_rejects_unknown_names(self, table: RegionTable) -> None:
        assert error_of(lambda: table.status(SYSTEM, "x")) == (
            Code.NOT_FOUND,
            "Unable to find system shared memory region: 'x'",
        )
        assert error_of(lambda: table.status(CUDA, "x")) == (
            Code.NOT_FOUND,
            "Unable to find cuda shared memory region: 'x'",
        )

    async def test_rejects_cuda_regions_without_gpus(self) -> None:
        table = RegionTable(is_allowed=True)
        with pytest.raises(NaiadError) as caught:
            await table.register_cuda("c", bytes(64), 0, 1)
        assert (caught.value.code, caught.value.message) == (
            Code.INVALID_ARG,
            "failed to register CUDA shared memory region: 'c', GPUs not supported",
        )

    @pytest.mark.parametrize(("name", "handle"), [("", bytes(64)), ("c", b""), ("", b"")])
    async def test_an_empty_name_or_handle_is_told_as_triton_does(
        self, name: str, handle: bytes
    ) -> None:
        with pytest.raises(NaiadError) as caught:
            await RegionTable(is_allowed=True).register_cuda(name, handle, 0, 1)
        assert (caught.value.code, caught.value.message) == (
            Code.INVALID_ARG,
            "failed to register shared memory region: invalid args",
        )

    async def test_rejects_a_name_that_was_registered_while_the_driver_was_busy(
        self, memory: SharedObject
    ) -> None:
        opened: list[FakeCudaRegion] = []

        def open_slowly(
            name: str, raw_handle: bytes, device_id: int, byte_size: int
        ) -> FakeCudaRegion:
            opened.append(open_fake(name, raw_handle, device_id, byte_size))
            return opened[0]

        table = RegionTable(is_allowed=True, open_cuda=open_slowly)
        registration = asyncio.ensure_future(table.register_cuda("c", bytes(64), 0, 1))
        await asyncio.sleep(0)
        table.register_system("c", memory.key, 0, 16)
        with pytest.raises(NaiadError, match="already in manager"):
            await registration
        assert opened[0].is_closed
        table.close()


class TestRequests:
    def test_reads_inputs_and_writes_outputs(
        self, table: RegionTable, memory: SharedObject
    ) -> None:
        table.register_system("r", memory.key, 0, 4096)
        lease = table.lease(use(RegionSlice("r", 5, 3), OUT=RegionSlice("r", 1024, 8)))
        request = InferRequest("m", [Tensor("IN", "UINT8", [3], b"")])
        lease.allocate_inputs(request, lambda num_bytes: None)
        lease.read_inputs(request)
        assert request.inputs[0].data == bytes([5, 6, 7])
        outputs = [Tensor("OUT", "UINT8", [8], b"8 bytes!"), Tensor("ELSE", "UINT8", [1], b"x")]
        assert lease.output_bytes(outputs) == 8
        left = lease.write_outputs(outputs)
        assert [tensor.data for tensor in left] == [b"", b"x"]
        assert outputs[0].data == b"8 bytes!"  # other readers may share the response
        assert memory.read(8, 1024) == b"8 bytes!"
        lease.close()

    def test_copies_large_inputs_to_memory_of_the_worker(
        self, table: RegionTable, memory: SharedObject
    ) -> None:
        table.register_system("r", memory.key, 0, 4096)
        lease = table.lease(use(RegionSlice("r", 0, 256)))
        arena = memoryview(bytearray(256))
        request = InferRequest("m", [Tensor("IN", "UINT8", [256], b"")])
        lease.allocate_inputs(request, lambda num_bytes: arena)
        lease.read_inputs(request)
        assert request.inputs[0].data is arena
        assert bytes(arena) == bytes(range(256))
        lease.close()

    def test_rejects_an_output_that_does_not_fit(
        self, table: RegionTable, memory: SharedObject
    ) -> None:
        table.register_system("r", memory.key, 0, 4096)
        lease = table.lease(use(OUT=RegionSlice("r", 0, 15)))
        message = (
            "shared memory size specified with the request for output 'OUT' (15 bytes) should be "
            "at least 16 bytes to hold the results"
        )
        assert error_of(lambda: lease.write_outputs([Tensor("OUT", "UINT8", [16], bytes(16))])) == (
            Code.INTERNAL,
            message,
        )
        assert memory.read(16) == bytes(range(16))
        lease.close()

    @pytest.mark.parametrize(
        ("piece", "message"),
        [
            (RegionSlice("x", 0, 1), "Unable to find shared memory region: 'x'"),
            (RegionSlice("r", 4096, 1), "Invalid offset for shared memory region: 'r'"),
            (RegionSlice("r", 2**64 - 16, 16), "Invalid offset for shared memory region: 'r'"),
            (RegionSlice("r", 4090, 7), "Invalid offset + byte size for shared memory region: 'r'"),
            (RegionSlice("r", 0, 4097), "Invalid offset + byte size for shared memory region: 'r'"),
            (
                RegionSlice("r", 16, 2**64 - 1),
                "Integer overflow detected: byte_size (18446744073709551615) + offset (16) "
                "exceeds maximum value "
                "(18446744073709551615) for region 'r'",
            ),
        ],
    )
    @pytest.mark.parametrize("is_output", [False, True])
    def test_rejects_slices_outside_of_the_region(
        self,
        table: RegionTable,
        memory: SharedObject,
        piece: RegionSlice,
        message: str,
        is_output: bool,
    ) -> None:
        table.register_system("r", memory.key, 0, 4096)
        wanted = use(OUT=piece) if is_output else use(piece)
        assert error_of(lambda: table.lease(wanted))[1] == message
        table.unregister(SYSTEM)
        assert names(table) == []  # a rejected lease does not keep the region open

    def test_limits_the_memory_of_requests_in_flight(
        self, table: RegionTable, memory: SharedObject
    ) -> None:
        """A region may claim any size, but the memory for its copy is real."""
        os.truncate(memory.path, 1 << 50)
        table.register_system("r", memory.key, 0, 1 << 50)
        assert (
            error_of(lambda: table.lease(use(RegionSlice("r", 0, 1 << 50))))[0] is Code.UNAVAILABLE
        )
        table._max_read_bytes = 100
        first = table.lease(use(RegionSlice("r", 0, 60)))
        assert error_of(lambda: table.lease(use(RegionSlice("r", 0, 60))))[0] is Code.UNAVAILABLE
        first.close()
        table.lease(use(RegionSlice("r", 0, 60))).close()

    def test_unregistering_waits_for_requests_in_flight(
        self, table: RegionTable, memory: SharedObject
    ) -> None:
        table.register_system("r", memory.key, 0, 16)
        lease, other = (
            table.lease(use(RegionSlice("r", 0, 16))),
            table.lease(use(OUT=RegionSlice("r", 0, 16))),
        )
        table.unregister(SYSTEM, "r")
        lease.close()
        assert names(table) == ["r"]
        other.write_outputs([Tensor("OUT", "UINT8", [4], b"done")])
        other.close()
        assert names(table) == []
        assert memory.read(4) == b"done"

    def test_closes_all_descriptors(self, memory: SharedObject) -> None:
        table = RegionTable(is_allowed=True)
        for number in range(5):
            table.register_system(f"r{number}", memory.key, 0, 16)
        assert memory.num_descriptors() == 5
        table.unregister(SYSTEM, "r0")
        assert memory.num_descriptors() == 4
        table.close()
        assert memory.num_descriptors() == 0
