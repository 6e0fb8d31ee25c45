"""Opens the store of a repository's URL, with its Bucket, its credentials and its cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from naiad.core.install_advice import install_command
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
"""Triton's environment variables for the directory of a repository's files."""


def open_store(
    url: str, cache_directory: str, environment: Environment = os.environ
) -> RemoteStore:
    """Raises NaiadError if the URL, the credential file or the cache folder cannot be used, or if
    an extra is not installed."""
    location = parse_location(url)
    return RemoteStore(
        url,
        _bucket(location, environment),
        _cache(location, cache_directory, environment),
        make_progress(),
    )


def _bucket(location: Location, environment: Environment) -> Callable[[], Bucket]:
    """Returns a function that opens the bucket. The libraries are extras, so they are imported only
    if a repository needs them."""
    try:
        if location.scheme == "hf":
            from naiad.stores.hub_bucket import HubBucket

            return lambda: HubBucket(location, environment.get("HF_ENDPOINT"))
        from naiad.stores.object_bucket import ObjectBucket
    except ImportError as error:
        extra = "hub" if location.scheme == "hf" else "cloud"
        raise invalid_arg(
            f"model repository '{location.url}' needs the package '{error.name}': "
            + install_command(extra)
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
