"""A remote model repository: its models are listed, fetched into a cache, and served from there.

In:  a Bucket and a cache folder. Out: a naiad.repository.store.Store; every method may block.
Rules: a model's directory is complete or does not exist. A model that cannot be fetched keeps its
       last state. If the store cannot be reached, when the server starts or later, the cache is
       used and the log has a warning.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from naiad import log
from naiad.errors import unavailable
from naiad.files.private_folder import locked, private_folder
from naiad.stores.bucket import Bucket, ChangedError, RemoteFile, StoreError
from naiad.stores.download import Download
from naiad.stores.manifest import Manifest, is_intact, read_manifest, write_manifest
from naiad.stores.progress import Progress
from naiad.stores.snapshot import make_snapshot, prune

Listing = dict[str, list[RemoteFile]]
_NUMBER = re.compile(r"\d+")


class RemoteStore:
    def __init__(
        self, url: str, bucket: Callable[[], Bucket], cache: Path, progress: Progress
    ) -> None:
        """Raises NaiadError if the cache folder is not safe to use. Sends no request to the store
        yet."""
        self._url = url
        self._make_bucket = bucket
        self._bucket: Bucket | None = None
        self._folder = private_folder(
            private_folder(cache) / hashlib.sha256(url.encode()).hexdigest()[:16]
        )
        self._blobs = private_folder(self._folder / "blobs")
        private_folder(self._folder / "partial")
        private_folder(self._folder / "models")
        self._progress = progress
        self._lock = threading.Lock()
        self._manifest = read_manifest(self._folder, url) or Manifest(url=url)
        self._directories: dict[str, Path] = {}
        self._failures: dict[str, str] = {}
        """Why a model could not be fetched, as far as the log has said so."""
        self._is_reachable = True
        self._hint = ""
        self._stop = threading.Event()

    @property
    def location(self) -> str:
        return self._url

    def names(self) -> set[str]:
        return set(self._manifest.names)

    def has(self, name: str) -> bool:
        return name in self._manifest.names

    def directory(self, name: str) -> Path | None:
        """Fetches the model if it was not fetched yet. Raises NaiadError."""
        if name not in self._directories and self.has(name):
            self.refresh([name])
        return self._directories.get(name)

    def failure(self, name: str) -> str:
        return self._failures.get(name, "")

    def refresh(self, names: Collection[str] | None = None) -> None:
        """Raises NaiadError if the store cannot be reached and the cache is empty, or if the cache
        cannot be used."""
        with self._lock:
            try:
                with locked(self._folder):
                    # Servers that share the cache have fetched other models.
                    self._manifest = read_manifest(self._folder, self._url) or self._manifest
                    self._refresh(names)
            except OSError as error:
                raise unavailable(
                    f"the cache of model repository '{self._url}' cannot be used: {error}"
                ) from error

    def _refresh(self, names: Collection[str] | None) -> None:
        try:
            try:
                self._update(names)
            except ChangedError:
                self._update(names)
        except StoreError as error:
            self._go_offline(names, error)

    def close(self) -> None:
        """Cancels downloads. What has arrived is kept for the next time."""
        self._stop.set()

    # The store can be reached.

    def _update(self, names: Collection[str] | None) -> None:
        if self._bucket is None:
            self._bucket = self._make_bucket()
        bucket = self._bucket
        found = [name for name in bucket.names() if is_safe_path(name) and not name.startswith(".")]
        listing = self._list(
            bucket,
            found if names is None else [name for name in found if name in names],
            is_all=names is None,
        )
        if not self._is_reachable:
            log.info(f"model repository '{self._url}' can be reached again")
            self._is_reachable = True
        self._warn_of_layout(found)
        missing = [
            file for files in listing.values() for file in files if not self._is_cached(file)
        ]
        fetched = Download(bucket, self._folder, self._progress, stop=self._stop).fetch(
            self._url, missing
        )
        self._manifest.kept |= fetched.kept
        for name, files in listing.items():
            failed = [fetched.failures[file.id] for file in files if file.id in fetched.failures]
            if failed:
                self._keep_last(name, failed[0])
                continue
            try:
                self._directories[name] = make_snapshot(self._folder, name, files, self._blobs)
            except OSError as error:  # such as a disk that is full
                self._keep_last(name, error)
                continue
            self._manifest.models[name] = files
            self._failures.pop(name, None)
        self._forget(set(found))
        self._save(set(listing))
        if any(isinstance(error, ChangedError) for error in fetched.failures.values()):
            raise ChangedError("the repository changed while it was fetched")

    def _list(self, bucket: Bucket, names: list[str], *, is_all: bool) -> Listing:
        """The files of each model. Paths that would lead outside the cache are ignored."""
        files = (
            bucket.files("") if is_all else [file for name in names for file in bucket.files(name)]
        )
        listing: Listing = {name: [] for name in names}
        for file in files:
            name = file.path.partition("/")[0]
            if not is_safe_path(file.path.removesuffix("/")):
                log.warning(
                    f"model repository '{self._url}': the key '{file.path!r}' is not a valid path "
                    "and is ignored"
                )
            elif name in listing and name != file.path:
                listing[name].append(file)
        return listing

    def _warn_of_layout(self, names: list[str]) -> None:
        """Once, where a local path would be an error or get a hint."""
        hint = ""
        if not names:
            hint = f"model repository '{self._url}' has no models: is its path right?"
        elif all(name.isdecimal() for name in names):
            hint = f"'{self._url}' is a model, not a repository: use the folder that holds it"
        if hint and hint != self._hint:
            log.warning(hint)
        self._hint = hint

    def _keep_last(self, name: str, error: Exception) -> None:
        last = self._manifest.models.get(name)
        is_kept = last is not None and self._use_cached(name, last)
        # The numbers of a full disk differ in each poll.
        if _NUMBER.sub("", self._failures.get(name, "")) != _NUMBER.sub("", str(error)):
            log.error(
                f"model repository '{self._url}': model '{name}' could not be fetched ({error}); "
                f"{'its last state is kept' if is_kept else 'there is no copy of it'}"
            )
        self._failures[name] = str(error)

    def _forget(self, found: set[str]) -> None:
        """Forgets models that the store no longer has. Their files stay for a while, because a copy
        may still be serving its last requests."""
        self._manifest.names = sorted(found)
        for name in self._manifest.models.keys() - found:
            del self._manifest.models[name]
            self._directories.pop(name, None)

    def _save(self, names: set[str]) -> None:
        wanted = {file.id for files in self._manifest.models.values() for file in files}
        self._manifest.kept = {id: kept for id, kept in self._manifest.kept.items() if id in wanted}
        self._manifest.checked_at = time.time()
        prune(self._folder, names, wanted)
        write_manifest(self._folder, self._manifest)

    # The store cannot be reached.

    def _go_offline(self, names: Collection[str] | None, error: StoreError) -> None:
        manifest: Manifest = self._manifest
        if not manifest.models:
            raise unavailable(
                f"model repository '{self._url}' cannot be reached, and there is no copy of it: "
                f"{error}"
            ) from error
        if self._is_reachable:
            log.warning(
                f"model repository '{self._url}' cannot be reached ({error}): "
                f"its copy of {manifest.checked_at_text()} is used"
            )
            self._is_reachable = False
        for name, files in manifest.models.items():
            if (
                (names is None or name in names)
                and name not in self._directories
                and not self._use_cached(name, files)
            ):
                log.error(
                    f"model repository '{self._url}': the copy of model '{name}' is damaged "
                    "and cannot be used"
                )

    def _use_cached(self, name: str, files: list[RemoteFile]) -> bool:
        if not all(self._is_cached(file) for file in files):
            return False
        try:
            self._directories[name] = make_snapshot(self._folder, name, files, self._blobs)
        except OSError:
            return False
        return True

    def _is_cached(self, file: RemoteFile) -> bool:
        return file.is_directory or is_intact(
            self._blobs / file.id, file, self._manifest.kept.get(file.id)
        )


def is_safe_path(path: str) -> bool:
    """Whether the path stays inside a folder, on every operating system."""
    parts = path.split("/")
    return (
        all(part not in ("", ".", "..") and len(part) < 256 for part in parts)
        and path.isprintable()
        and "\\" not in path
    )
