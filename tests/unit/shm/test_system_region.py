"""System shared memory: which keys can be opened, and that no change by a client to its registered
memory harms the server."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError
from naiad.shm.system_region import RESERVED_PREFIX, open_system_region
from tests.unit.shm.shared_object import shared_object

SHRUNK = "shared memory region 'r' is smaller now than it was when it was registered"


def rejection(
    name: str, key: str, offset: int = 0, byte_size: int = 16, **more: str
) -> tuple[Code, str]:
    with pytest.raises(NaiadError) as caught:
        open_system_region(name, key, offset, byte_size, **more)
    return caught.value.code, caught.value.message


class TestOpening:
    @pytest.mark.parametrize("slashes", ["", "/", "///"])
    def test_ignores_leading_slashes(self, slashes: str) -> None:
        with shared_object(b"0123456789abcdef") as memory:
            region = open_system_region("r", slashes + memory.key.lstrip("/"), 4, 8)
            assert region.read(0, 8) == b"456789ab"
            assert region.describe() == {
                "name": "r",
                "key": slashes + memory.key.lstrip("/"),
                "offset": 4,
                "byte_size": 8,
            }
            region.close()

    @pytest.mark.parametrize(
        "key",
        [
            RESERVED_PREFIX,
            f"/{RESERVED_PREFIX}x",
            f"//{RESERVED_PREFIX}x",
            f"////{RESERVED_PREFIX}",
        ],
    )
    def test_rejects_keys_reserved_by_triton(self, key: str) -> None:
        message = (
            f"cannot register shared memory region 'r' with key '{key}' as the key contains the "
            f"reserved prefix '{RESERVED_PREFIX}'"
        )
        assert rejection("r", key) == (Code.INVALID_ARG, message)

    @pytest.mark.parametrize("key", ["", "/", "//"])
    def test_rejects_empty_keys(self, key: str) -> None:
        assert rejection("r", key) == (
            Code.INVALID_ARG,
            f"cannot register shared memory region 'r' - invalid shm key '{key}'",
        )

    @pytest.mark.parametrize(
        "key", ["/nosuch", "..", ".", "/../shm/x", "a/b", "x\0y", "k" * 300, "\ud800"]
    )
    def test_rejects_keys_of_missing_objects(self, key: str) -> None:
        assert rejection("r", key) == (
            Code.INTERNAL,
            f"Unable to open shared memory region: '{key}'",
        )

    def test_rejects_objects_that_are_not_regular_files(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "secret").write_bytes(bytes(64))
        (tmp_path / "link").symlink_to(tmp_path / "secret")
        for key in ("folder", "fifo", "link"):
            assert (
                rejection("r", key, folder=str(tmp_path))[1]
                == f"Unable to open shared memory region: '{key}'"
            )

    @pytest.mark.parametrize(
        ("offset", "byte_size"),
        [
            (0, 4097),
            (4096, 1),
            (4095, 2),
            (0, 0),
            (0, 2**64 - 1),
            (2**64 - 1, 2**64 - 1),
            (2**63, 1),
        ],
    )
    def test_rejects_sizes_beyond_the_object(self, offset: int, byte_size: int) -> None:
        with shared_object(bytes(4096)) as memory:
            assert rejection("r", memory.key, offset, byte_size) == (
                Code.INVALID_ARG,
                "failed to register shared memory region 'r': invalid args",
            )

    def test_rejected_registrations_leave_no_descriptor_open(self) -> None:
        with shared_object(bytes(16)) as memory:
            for _ in range(5):
                rejection("r", memory.key, 0, 17)
            assert memory.num_descriptors() == 0


class TestUse:
    def test_reads_and_writes(self) -> None:
        with shared_object(bytes(range(64))) as memory:
            region = open_system_region("r", memory.key, 16, 32)
            buffer = memoryview(bytearray(8))
            region.read_into(4, buffer)
            assert bytes(buffer) == bytes(range(20, 28))
            region.write(0, b"new")
            assert memory.read(3, 16) == b"new"
            region.close()

    def test_an_unlinked_object_can_still_be_used(self) -> None:
        with shared_object(b"data") as memory:
            region = open_system_region("r", memory.key, 0, 4)
        assert region.read(0, 4) == b"data"
        region.close()

    def test_truncated_memory_is_an_error(self) -> None:
        with shared_object(bytes(1 << 16)) as memory:
            region = open_system_region("r", memory.key, 0, 1 << 16)
            memory.truncate(100)
            for use in (
                lambda: region.read(0, 1 << 16),
                lambda: region.read_into(0, memoryview(bytearray(1 << 16))),
                lambda: region.write(0, bytes(1 << 16)),
            ):
                with pytest.raises(NaiadError, match=SHRUNK):
                    use()
            assert region.read(0, 100) == bytes(100)
            assert os.stat(memory.path).st_size == 100
            region.close()

    def test_survives_an_object_that_is_truncated_all_the_time(self) -> None:
        """A mapping would cause SIGBUS here. A read returns data or raises an error."""
        size = 1 << 20
        stop = threading.Event()
        with shared_object(b"x" * size) as memory:
            region = open_system_region("r", memory.key, 0, size)

            def torment() -> None:
                while not stop.is_set():
                    memory.truncate(0)
                    memory.truncate(size)

            thread = threading.Thread(target=torment)
            thread.start()
            try:
                outcomes = set()
                for _ in range(300):
                    try:
                        region.read_into(0, memoryview(bytearray(size)))
                        region.write(0, b"y" * size)
                        outcomes.add("done")
                    except NaiadError as error:
                        outcomes.add(error.message)
                assert outcomes <= {"done", SHRUNK}
            finally:
                stop.set()
                thread.join()
            region.close()

    def test_rejects_a_read_only_object(self) -> None:
        """As with shm_open and O_RDWR, an object must be writable."""
        with shared_object(bytes(16)) as memory:
            os.chmod(memory.path, 0o400)
            if os.geteuid() == 0:
                pytest.skip("root may write anything")
            assert (
                rejection("r", memory.key)[1]
                == f"Unable to open shared memory region: '{memory.key}'"
            )
