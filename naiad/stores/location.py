"""Parses the URL of a repository: Triton's URLs, and hf:// for the Hugging Face hub.

s3://bucket/path · s3://host:port/bucket/path (HTTP) · s3://https://host:port/bucket/path ·
gs://bucket/path · as://account/container/path · hf://organisation/repository[@revision][/path]
Rule: pure. A repository without a scheme is a local directory and is not parsed here.
"""

from __future__ import annotations

import re

import msgspec

from naiad.errors import invalid_arg

SCHEMES = ("s3", "gs", "as", "hf")
_S3_WITH_HOST = re.compile(r"(?P<protocol>https?://)?(?P<host>[0-9a-zA-Z.\-]+:[0-9]+)/(?P<rest>.*)")
_BUCKET = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z.\-_]*")


class Location(msgspec.Struct, frozen=True):
    url: str
    """The URL as the operator wrote it."""
    scheme: str
    bucket: str
    """The bucket, the container or `organisation/repository`."""
    prefix: str
    """The common prefix of the repository's keys, without slashes at its ends; may be empty."""
    endpoint: str = ""
    """`http://host:port` of a server that is not the vendor's; otherwise empty."""
    account: str = ""
    revision: str = ""


def is_remote(repository: str) -> bool:
    return "://" in repository


def parse_location(url: str) -> Location:
    """Raises NaiadError."""
    scheme, _, rest = url.partition("://")
    match scheme:
        case "s3":
            return _s3(url, rest)
        case "gs":
            bucket, prefix = _split(url, rest)
            return Location(url, "gs", bucket, prefix)
        case "as":
            account, rest = _split(url, rest)
            bucket, prefix = _split(url, rest)
            return Location(url, "as", bucket, prefix, account=account)
        case "hf":
            return _hub(url, rest)
    raise invalid_arg(
        f"unsupported model repository '{url}': expected a directory or a URL with one of "
        f"{', '.join(SCHEMES)}"
    )


def _s3(url: str, rest: str) -> Location:
    found = _S3_WITH_HOST.fullmatch(rest)
    if found is None:
        bucket, prefix = _split(url, rest)
        return Location(url, "s3", bucket, prefix)
    bucket, prefix = _split(url, found["rest"])
    return Location(
        url, "s3", bucket, prefix, endpoint=f"{found['protocol'] or 'http://'}{found['host']}"
    )


def _hub(url: str, rest: str) -> Location:
    owner, _, rest = rest.partition("/")
    name, _, prefix = rest.partition("/")
    name, _, revision = name.partition("@")
    if not (_BUCKET.fullmatch(owner) and _BUCKET.fullmatch(name)):
        raise invalid_arg(
            f"invalid model repository '{url}': expected "
            "hf://organisation/repository[@revision][/path]"
        )
    return Location(url, "hf", f"{owner}/{name}", prefix.strip("/"), revision=revision)


def _split(url: str, rest: str) -> tuple[str, str]:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise invalid_arg(
            f"invalid model repository '{url}': '{bucket}' is not a valid bucket name"
        )
    prefix = re.sub("/+", "/", prefix).strip("/")
    if ".." in prefix.split("/"):
        raise invalid_arg(f"invalid model repository '{url}': its path must not contain '..'")
    return bucket, prefix
