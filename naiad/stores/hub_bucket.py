"""A repository on the Hugging Face hub as a Bucket, through huggingface_hub (`pip install
naiad[hub]`): hf://organisation/repository.

The library knows the endpoint, the token and the listing; the bytes come by ranges over its own
HTTP client, so that resuming, progress and the cache are the same as for every other store.
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import huggingface_hub
import huggingface_hub.utils

from naiad.stores.bucket import ChangedError, RemoteFile, StoreError
from naiad.stores.location import Location

CHUNK_BYTES = 1 << 20
HTTP_RANGE_IGNORED = 200
T = TypeVar("T")
hub: Any = huggingface_hub.utils


class HubBucket:
    def __init__(self, location: Location, endpoint: str | None = None) -> None:
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._api = huggingface_hub.HfApi(endpoint=endpoint)
        self._commit = ""
        """Of the last listing: files are read as they were then, whatever is pushed meanwhile."""

    def names(self) -> list[str]:
        def ask() -> list[str]:
            found = self._api.repo_info(
                self._location.bucket, revision=self._location.revision or None, timeout=30
            )
            self._commit = found.sha or ""
            entries = self._tree(self._location.prefix, recursive=False)
            return [
                entry.path.rpartition("/")[2] for entry in entries if not hasattr(entry, "size")
            ]

        return _asking(ask)

    def files(self, directory: str) -> list[RemoteFile]:
        entries = _asking(
            lambda: self._tree(f"{self._prefix}{directory}".rstrip("/"), recursive=True)
        )
        return [
            RemoteFile(
                entry.path.removeprefix(self._prefix), entry.size, entry.blob_id, _digest(entry)
            )
            for entry in entries
            if hasattr(entry, "size")
        ]

    def _tree(self, path: str, *, recursive: bool) -> list[Any]:
        return list(
            self._api.list_repo_tree(
                self._location.bucket, path or None, recursive=recursive, revision=self._revision
            )
        )

    @property
    def _revision(self) -> str | None:
        return self._commit or self._location.revision or None

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        url = huggingface_hub.hf_hub_url(
            self._location.bucket,
            self._prefix + file.path,
            revision=self._revision,
            endpoint=self._api.endpoint,
        )
        headers = hub.build_hf_headers() | {
            "Range": f"bytes={start}-{end - 1}",
            "Accept-Encoding": "identity",
        }
        try:
            with hub.get_session().stream(
                "GET", url, headers=headers, follow_redirects=True
            ) as answer:
                hub.hf_raise_for_status(answer)
                if answer.status_code == HTTP_RANGE_IGNORED and start:
                    raise StoreError("the hub does not send parts of files")
                yield from answer.iter_bytes(CHUNK_BYTES)
        except StoreError:
            raise
        except huggingface_hub.errors.EntryNotFoundError as error:
            raise ChangedError(f"{file.path} is no longer there") from error
        except (
            Exception
        ) as error:  # the library's HTTP client, and so its errors, differ between its versions
            raise StoreError(_words(error)) from error


def _digest(entry: Any) -> str:
    return f"sha256:{entry.lfs.sha256}" if entry.lfs is not None else f"git:{entry.blob_id}"


def _asking(question: Callable[[], T]) -> T:
    try:
        return question()
    except Exception as error:  # as above
        raise StoreError(_words(error)) from error


def _words(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
