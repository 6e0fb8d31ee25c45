"""A repository's URL -> its store: the right Bucket, the right credentials, the cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.stores.bucket import Bucket
from naiad.stores.credentials import Environment, store_options
from naiad.stores.location import Location, parse_location
from naiad.stores.progress import make_progress
from naiad.stores.remote_store import RemoteStore

MOUNT_DIRECTORIES = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
"""Triton's variables for where the files of a repository are put."""


def open_store(
    url: str, cache_directory: str, environment: Environment = os.environ
) -> RemoteStore:
    """Raises NaiadError: a URL, a credential file or a cache folder that cannot be used, or an
    extra that is not installed."""
    location = parse_location(url)
    return RemoteStore(
        url,
        _bucket(location, environment),
        _cache(location, cache_directory, environment),
        make_progress(),
    )


def _bucket(location: Location, environment: Environment) -> Callable[[], Bucket]:
    """The libraries are extras, and imported only when such a repository is used."""
    try:
        if location.scheme == "hf":
            from naiad.stores.hub_bucket import HubBucket

            return lambda: HubBucket(location, environment.get("HF_ENDPOINT"))
        from naiad.stores.object_bucket import ObjectBucket
    except ImportError as error:
        extra = "hub" if location.scheme == "hf" else "cloud"
        raise invalid_arg(
            f"model repository '{location.url}' needs the package '{error.name}': pip install naiad[{extra}]"
        ) from error
    options = store_options(location, environment)
    return lambda: ObjectBucket(location, options)


def _cache(location: Location, directory: str, environment: Environment) -> Path:
    chosen = directory or environment.get(MOUNT_DIRECTORIES.get(location.scheme, ""))
    if chosen:
        return Path(chosen) / "naiad-repositories"
    home = (
        environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    )
    return Path(home) / "naiad" / "repositories"
