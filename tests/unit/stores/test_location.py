"""URLs of repositories: those of Triton, and invalid ones."""

from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.stores.location import Location, is_remote, parse_location


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", Location("", "s3", "bucket", "")),
        ("s3://bucket/", Location("", "s3", "bucket", "")),
        ("s3://bucket/a/b/", Location("", "s3", "bucket", "a/b")),
        ("s3://bucket//a///b", Location("", "s3", "bucket", "a/b")),
        ("s3://host:9000/bucket/a", Location("", "s3", "bucket", "a", endpoint="http://host:9000")),
        (
            "s3://http://host:9000/bucket",
            Location("", "s3", "bucket", "", endpoint="http://host:9000"),
        ),
        (
            "s3://https://host.example:443/bucket/a/b",
            Location("", "s3", "bucket", "a/b", endpoint="https://host.example:443"),
        ),
        ("gs://my-bucket/models", Location("", "gs", "my-bucket", "models")),
        (
            "as://account/container/path/x",
            Location("", "as", "container", "path/x", account="account"),
        ),
        ("as://account/container", Location("", "as", "container", "", account="account")),
        ("hf://org/repo", Location("", "hf", "org/repo", "")),
        (
            "hf://org/repo@v1.0/models/x",
            Location("", "hf", "org/repo", "models/x", revision="v1.0"),
        ),
    ],
)
def test_urls_that_are_accepted(url: str, expected: Location) -> None:
    found = parse_location(url)
    assert found == Location(
        url, *(getattr(expected, name) for name in expected.__struct_fields__[1:])
    )


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///a",
        "gs://",
        "as://account",
        "as://account/",
        "hf://repo",
        "hf://org/",
        "ftp://x/y",
        "http://host/x",
        "s3://b/../c",
        "s3://-b/x",
    ],
)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(NaiadError):
        parse_location(url)


def test_a_directory_is_not_a_url() -> None:
    assert [is_remote(text) for text in ("/models", "models", "./s3", "s3://b", "hf://a/b")] == [
        False,
        False,
        False,
        True,
        True,
    ]
