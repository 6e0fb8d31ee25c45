"""Downloads remote files into the cache: in parts, many at a time, with retries and checksums.

In:  RemoteFiles that the cache lacks. Out: for each file either what the cache has now, or the
     error. A file is first written to `partial/<id>`, and the numbers of its complete parts to
     `partial/<id>.parts`, so that a server that was killed continues where it stopped.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from naiad.stores.bucket import Bucket, ChangedError, RemoteFile, StoppedError, StoreError
from naiad.stores.manifest import Kept, file_sum, has_digest
from naiad.stores.progress import Progress

PART_BYTES = 32 << 20
MAX_PARALLEL = 16
MAX_ATTEMPTS = 4
FIRST_DELAY_S = 0.2
PAST_NS = 1_000_000_000


class Fetched(msgspec.Struct):
    kept: dict[str, Kept] = {}
    """RemoteFile.id -> the cached file."""
    failures: dict[str, StoreError] = {}


class Download:
    def __init__(
        self,
        bucket: Bucket,
        folder: Path,
        progress: Progress,
        *,
        part_bytes: int = PART_BYTES,
        max_parallel: int = MAX_PARALLEL,
        stop: threading.Event | None = None,
    ) -> None:
        """Another thread sets `stop` to cancel the download. What has arrived is kept for the next
        time."""
        self._bucket = bucket
        self._blobs = folder / "blobs"
        self._partial = folder / "partial"
        self._progress = progress
        self._part_bytes = part_bytes
        self._max_parallel = max_parallel
        self._stop = stop or threading.Event()

    def fetch(self, title: str, files: list[RemoteFile]) -> Fetched:
        """Blocks until each file is fetched or has failed. A model for which the disk has no room
        fails, and the others are fetched."""
        fetched = Fetched()
        transfers = self._with_room(
            [Transfer(file, self._partial, self._part_bytes) for file in files], fetched
        )
        if not transfers:
            return fetched
        self._progress.start(
            title, sum(transfer.num_missing_bytes for transfer in transfers), len(files)
        )
        try:
            with ThreadPoolExecutor(self._max_parallel, thread_name_prefix="naiad-fetch") as pool:
                parts = [(transfer, part) for transfer in transfers for part in transfer.missing]
                list(pool.map(lambda item: self._fetch_part(*item), parts))
                results = pool.map(self._finish, transfers)
        finally:
            self._progress.finish()
        for transfer, result in zip(transfers, results, strict=True):
            if isinstance(result, Kept):
                fetched.kept[transfer.file.id] = result
            else:
                fetched.failures[transfer.file.id] = result
        return fetched

    def _with_room(self, transfers: list[Transfer], fetched: Fetched) -> list[Transfer]:
        """The transfers of the models that the disk has room for, small ones first."""
        models: dict[str, list[Transfer]] = {}
        for transfer in transfers:
            models.setdefault(transfer.file.path.partition("/")[0], []).append(transfer)
        free = shutil.disk_usage(self._partial).free if transfers else 0
        chosen: list[Transfer] = []
        sizes = {name: sum(each.num_missing_bytes for each in models[name]) for name in models}
        for name in sorted(models, key=lambda name: sizes[name]):
            if sizes[name] <= free:
                free -= sizes[name]
                chosen += models[name]
                continue
            for transfer in models[name]:
                fetched.failures[transfer.file.id] = StoreError(
                    f"{sizes[name]} bytes have to be fetched, but the disk of the cache has only "
                    f"{free} left"
                )
        return chosen

    def _fetch_part(self, transfer: Transfer, part: int) -> None:
        start, end = transfer.bounds(part)
        for attempt in range(MAX_ATTEMPTS):
            if transfer.error is not None:
                return
            try:
                self._check_stopped()
                for chunk in self._bucket.read(transfer.file, start, end):
                    self._check_stopped()
                    if start + len(chunk) > end:
                        raise StoreError(
                            f"{transfer.file.path}: the store sent more bytes than requested"
                        )
                    transfer.write(chunk, start)
                    start += len(chunk)
                    self._progress.advance(len(chunk))
                if start == end:
                    transfer.mark(part)
                    return
                raise StoreError(f"{transfer.file.path}: the store sent fewer bytes than requested")
            except (ChangedError, StoppedError) as error:
                transfer.error = error
            except OSError as error:
                transfer.error = StoreError(
                    f"{transfer.file.path}: failed to write it to the cache: {error.strerror}"
                )
            except StoreError as error:
                if attempt == MAX_ATTEMPTS - 1:
                    transfer.error = error
                else:
                    self._stop.wait(FIRST_DELAY_S * 2**attempt)

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise StoppedError("the server is stopping")

    def _finish(self, transfer: Transfer) -> Kept | StoreError:
        if transfer.error is not None:
            return transfer.error
        sha256 = file_sum(transfer.path)
        if not has_digest(transfer.path, transfer.file, sha256):
            transfer.discard()
            return StoreError(
                f"{transfer.file.path}: the content does not match the checksum of the store"
            )
        target = self._blobs / transfer.file.id
        transfer.path.chmod(0o600)
        # A file system's clock moves in ticks, so a later write within the same tick would leave
        # the same time. A time in the past can never be the time of a later write.
        fetched_ns = time.time_ns() - PAST_NS
        os.utime(transfer.path, ns=(fetched_ns, fetched_ns))
        transfer.path.replace(target)
        transfer.discard()
        return Kept(sha256, target.stat().st_mtime_ns)


class Transfer:
    """The download of one file."""

    def __init__(self, file: RemoteFile, folder: Path, part_bytes: int) -> None:
        self.file = file
        self.path = folder / file.id
        self.error: StoreError | None = None
        self._part_bytes = part_bytes
        self._marks = folder / f"{file.id}.parts"
        self._lock = threading.Lock()
        num_parts = -(-file.size // part_bytes)
        self.missing = sorted(set(range(num_parts)) - self._resume())

    @property
    def num_missing_bytes(self) -> int:
        return sum(end - start for start, end in map(self.bounds, self.missing))

    def bounds(self, part: int) -> tuple[int, int]:
        return part * self._part_bytes, min((part + 1) * self._part_bytes, self.file.size)

    def write(self, chunk: bytes, offset: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while chunk:
                count = os.pwrite(descriptor, chunk, offset)
                chunk, offset = chunk[count:], offset + count
        finally:
            os.close(descriptor)

    def mark(self, part: int) -> None:
        with self._lock, self._marks.open("a") as marks:
            marks.write(f"{self._part_bytes} {part}\n")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._marks.unlink(missing_ok=True)

    def _resume(self) -> set[int]:
        """The parts that an earlier attempt has finished. The file's name identifies path, size and
        tag, so they belong to the same content."""
        done: set[int] = set()
        if (
            self.path.is_file()
            and not self.path.is_symlink()
            and self.path.stat().st_size == self.file.size
            and self._marks.is_file()
        ):
            for line in self._marks.read_text().splitlines():
                size, _, part = line.partition(" ")
                if size == str(self._part_bytes) and part.isdigit():
                    done.add(int(part))
            return done
        self.discard()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self.file.size)
        finally:
            os.close(descriptor)
        return done
