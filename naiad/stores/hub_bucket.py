"""A repository on the Hugging Face hub as a Bucket: hf://organisation/repository. It uses
huggingface_hub (the extra `hub`).

The library handles the endpoint, the token and the listing. Bytes are requested in ranges through
the library's HTTP client, so that resuming, progress and the cache work as for every other store.
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE have their usual meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import huggingface_hub
import huggingface_hub.utils

from naiad.stores.bucket import ChangedError, RemoteFile, StoreError
from naiad.stores.location import Location

CHUNK_BYTES = 1 << 20
HTTP_RANGE_IGNORED = 200
_STATUS = re.compile(r"(\d{3}) (?:Client|Server) Error\.?.*")
T = TypeVar("T")
hub: Any = huggingface_hub.utils


class HubBucket:
    def __init__(self, location: Location, endpoint: str | None = None) -> None:
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._api = huggingface_hub.HfApi(endpoint=endpoint)
        self._commit = ""
        """The commit of the last listing. Files are read from this commit, even if there is a newer
        one."""

    def names(self) -> list[str]:
        def list_names() -> list[str]:
            info = self._api.repo_info(
                self._location.bucket, revision=self._location.revision or None, timeout=30
            )
            self._commit = info.sha or ""
            entries = self._tree(self._location.prefix, recursive=False)
            return [
                entry.path.rpartition("/")[2] for entry in entries if not hasattr(entry, "size")
            ]

        return _request(list_names)

    def files(self, directory: str) -> list[RemoteFile]:
        entries = _request(
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
            ) as response:
                hub.hf_raise_for_status(response)
                if response.status_code == HTTP_RANGE_IGNORED and start:
                    raise StoreError("the hub does not support range requests")
                yield from response.iter_bytes(CHUNK_BYTES)
        except StoreError:
            raise
        except huggingface_hub.errors.EntryNotFoundError as error:
            raise ChangedError(f"{file.path} no longer exists") from error
        # The library's HTTP client, and therefore the type of its errors, depends on its version.
        except Exception as error:
            raise StoreError(_message(error)) from error


def _digest(entry: Any) -> str:
    return f"sha256:{entry.lfs.sha256}" if entry.lfs is not None else f"git:{entry.blob_id}"


def _request(send: Callable[[], T]) -> T:
    try:
        return send()
    except Exception as error:  # Any type, as in `read`.
        raise StoreError(_message(error)) from error


def _message(error: Exception) -> str:
    """The library's sentences. The first line of an error of HTTP has only its status."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and _STATUS.match(lines[0]):
        lines[0] = _STATUS.sub(r"\1:", lines[0])
    return " ".join(lines) or type(error).__name__
