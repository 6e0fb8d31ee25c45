"""Each kind of bucket with a server that speaks its protocol: names, files, ranges, changes, and
missing servers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from naiad.stores import object_bucket
from naiad.stores.bucket import Bucket, ChangedError, RemoteFile, StoreError
from naiad.stores.hub_bucket import HubBucket
from naiad.stores.location import parse_location
from naiad.stores.object_bucket import ObjectBucket
from tests.server.s3_server import KEYS, S3Server, s3_server
from tests.unit.stores.cloud_servers import (
    AzureHandler,
    CloudHandler,
    CloudServer,
    GoogleHandler,
    HubHandler,
    cloud_server,
    git_id,
)

LARGE = bytes(range(256)) * 20
FILES = {
    "models/m/config.pbtxt": b"name: 'm'",
    "models/m/1/model.py": b"code",
    "models/m/1/weights.bin": LARGE,
    "models/n/1/a b+c%.txt": b"an odd name",
    "models/readme.txt": b"at the top",
    "elsewhere/x/1/model.py": b"not ours",
}
Change = Callable[[str, bytes | None], None]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Rig:
    def __init__(
        self, bucket: Callable[[str], Bucket], change: Change, stop: Callable[[], None]
    ) -> None:
        self.bucket = bucket
        """Prefix in the URL -> bucket."""
        self.change = change
        self.stop = stop


def s3_rig(server: S3Server, name: str) -> Rig:
    server.make_bucket(name, FILES)
    options = {
        "access_key_id": KEYS["AWS_ACCESS_KEY_ID"],
        "secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"],
        "region": "us-east-1",
    }

    def change(key: str, content: bytes | None) -> None:
        if content is None:
            server.delete(name, key)
        else:
            server.put(name, {key: content})

    return Rig(
        lambda prefix: ObjectBucket(parse_location(server.url(name, prefix)), options),
        change,
        lambda: None,
    )


def fake_rig(server: CloudServer, open_bucket: Callable[[str], Bucket]) -> Rig:
    def change(key: str, content: bytes | None) -> None:
        if content is None:
            del server.files[key]
        else:
            server.files[key] = content

    return Rig(open_bucket, change, server.stop)


@pytest.fixture(params=["s3", "gs", "as", "hf"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    kind: str = request.param
    if kind == "s3":
        yield s3_rig(request.getfixturevalue("s3"), f"bucket-{abs(hash(request.node.name))}")
        return
    with ExitStack() as stack:
        handler: Any = {"gs": GoogleHandler, "as": AzureHandler, "hf": HubHandler}[kind]
        server = stack.enter_context(cloud_server(handler, FILES))
        if kind == "hf":
            yield fake_rig(
                server,
                lambda prefix: HubBucket(
                    parse_location(f"hf://organisation/models/{prefix}"), server.url
                ),
            )
        elif kind == "gs":
            options = {"skip_signature": True, "base_url": server.url}
            yield fake_rig(
                server,
                lambda prefix: ObjectBucket(parse_location(f"gs://bucket/{prefix}"), options),
            )
        else:
            options = {"account_name": "account", "skip_signature": True, "endpoint": server.url}
            yield fake_rig(
                server,
                lambda prefix: ObjectBucket(
                    parse_location(f"as://account/container/{prefix}"), options
                ),
            )


def by_path(files: list[RemoteFile]) -> dict[str, RemoteFile]:
    return {file.path: file for file in files}


def test_names_and_files(rig: Rig) -> None:
    bucket = rig.bucket("models")
    assert sorted(bucket.names()) == ["m", "n"]
    found = by_path(bucket.files("m"))
    assert {path: file.size for path, file in found.items()} == {
        "m/config.pbtxt": 9,
        "m/1/model.py": 4,
        "m/1/weights.bin": len(LARGE),
    }
    everything = by_path(bucket.files(""))
    assert set(everything) >= {
        "m/config.pbtxt",
        "m/1/model.py",
        "m/1/weights.bin",
        "n/1/a b+c%.txt",
    }
    assert not any(path.startswith("x") or "elsewhere" in path for path in everything)


def test_a_repository_at_the_top_of_its_bucket(rig: Rig) -> None:
    bucket = rig.bucket("")
    assert sorted(bucket.names()) == ["elsewhere", "models"]
    assert "models/m/1/model.py" in by_path(bucket.files("models"))


def test_a_range_of_bytes_is_read(rig: Rig) -> None:
    bucket = rig.bucket("models")
    bucket.names()
    file = by_path(bucket.files("m"))["m/1/weights.bin"]
    for start, end in ((0, len(LARGE)), (0, 1), (100, 1000), (len(LARGE) - 5, len(LARGE))):
        assert b"".join(bucket.read(file, start, end)) == LARGE[start:end]


def test_unusual_file_names_can_be_read(rig: Rig) -> None:
    bucket = rig.bucket("models")
    bucket.names()
    (file,) = bucket.files("n")
    assert b"".join(bucket.read(file, 0, file.size)) == b"an odd name"


def test_a_changed_file_has_another_tag(rig: Rig) -> None:
    bucket = rig.bucket("models")
    bucket.names()
    before = by_path(bucket.files("m"))["m/1/model.py"]
    rig.change("models/m/1/model.py", b"CODE")
    bucket.names()
    after = by_path(bucket.files("m"))["m/1/model.py"]
    assert (before.id != after.id, before.size == after.size) == (True, True)
    assert b"".join(bucket.read(after, 0, 4)) == b"CODE"


def test_a_missing_file_counts_as_changed(rig: Rig) -> None:
    bucket = rig.bucket("models")
    bucket.names()
    file = by_path(bucket.files("m"))["m/1/model.py"]
    rig.change("models/m/1/model.py", None)
    with pytest.raises(ChangedError):
        list(bucket.read(file, 0, 4))


@pytest.mark.parametrize("rig", ["gs", "as", "hf"], indirect=True)
def test_an_unreachable_server_is_an_error(rig: Rig) -> None:
    """The S3 server is shared by the tests of this module; tests/server/test_stores.py stops its
    own."""
    bucket = rig.bucket("models")
    rig.stop()
    with pytest.raises(StoreError):
        bucket.names()


def test_a_file_of_s3_that_changed_is_not_mixed_with_the_old_one(s3: S3Server) -> None:
    rig = s3_rig(s3, "changing")
    bucket = rig.bucket("models")
    file = by_path(bucket.files("m"))["m/1/model.py"]
    rig.change("models/m/1/model.py", b"CODE")
    with pytest.raises(ChangedError):
        list(bucket.read(file, 0, 4))


def test_empty_folders_of_s3(s3: S3Server) -> None:
    """A console creates them as keys that end with a slash. The version directory of an ensemble is
    empty."""
    s3.make_bucket(
        "folders",
        {
            "e/": b"",
            "e/config.pbtxt": b"x",
            "e/1/": b"",
            "m/1/": b"",
            "m/1/model.py": b"x",
            "m/1/__init__.py": b"",
        },
    )
    bucket = ObjectBucket(
        parse_location(s3.url("folders")), {"skip_signature": True, "region": "us-east-1"}
    )
    found = by_path(bucket.files(""))
    assert set(found) == {"e/config.pbtxt", "e/1/", "m/1/model.py", "m/1/__init__.py"}


def test_a_missing_bucket_is_an_error(s3: S3Server) -> None:
    bucket = ObjectBucket(
        parse_location(s3.url("nowhere")), {"skip_signature": True, "region": "us-east-1"}
    )
    with pytest.raises(StoreError):
        bucket.names()


def test_the_hub_reports_checksums() -> None:
    with cloud_server(HubHandler, FILES) as server:
        bucket = HubBucket(parse_location("hf://organisation/models@main/models"), server.url)
        bucket.names()
        found = by_path(bucket.files("m"))
        assert found["m/1/weights.bin"].digest == f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
        assert found["m/1/model.py"].digest == f"git:{git_id(b'code')}"
        assert any(
            "/resolve/" not in request and "revision/main" in request for request in server.requests
        )
        with pytest.raises(StoreError):
            HubBucket(parse_location("hf://organisation/models@gone"), server.url).names()
        with pytest.raises(StoreError):
            HubBucket(parse_location("hf://nobody/nothing"), server.url).names()


class OkForParts(AzureHandler):
    part_status = 200


class WithoutRanges(AzureHandler):
    has_ranges = False


@pytest.mark.parametrize("handler", [AzureHandler, OkForParts, WithoutRanges])
def test_a_server_with_its_own_idea_of_ranges(handler: type[CloudHandler]) -> None:
    """A whole file is read without a range, and a part by what Content-Range says."""
    key = base64.b64encode(b"key").decode()
    with cloud_server(handler, FILES) as server:
        options = {"account_name": "account", "account_key": key, "endpoint": server.url}
        bucket = ObjectBucket(parse_location("as://account/container/models"), options)
        file = by_path(bucket.files("m"))["m/1/weights.bin"]
        assert b"".join(bucket.read(file, 0, file.size)) == LARGE
        assert server.ranges == [None]
        assert b"".join(bucket.read(file, 0, 100)) == LARGE[:100]
        if handler is WithoutRanges:
            with pytest.raises(StoreError, match=r"weights.bin: the store does not support ranges"):
                list(bucket.read(file, 100, 1000))
            return
        assert b"".join(bucket.read(file, 100, 1000)) == LARGE[100:1000]
        server.files["models/m/1/weights.bin"] = LARGE[::-1]
        with pytest.raises(ChangedError):
            list(bucket.read(file, 100, 1000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no route", "no route"),
        (
            'status code: 403: <?xml version="1.0"?>\n<Error><Code>InvalidAccessKeyId</Code>'
            "<Message>The key does\nnot exist.</Message></Error>\n\nDebug source: X { }",
            "InvalidAccessKeyId: The key does not exist.",
        ),
    ],
)
def test_the_sentence_of_a_store_is_kept(text: str, expected: str) -> None:
    assert object_bucket._message(Exception(text)) == expected


def test_the_sentences_of_the_hub_are_kept() -> None:
    with cloud_server(HubHandler, FILES) as server:
        with pytest.raises(StoreError) as refused:
            HubBucket(parse_location("hf://nobody/nothing"), server.url).names()
        assert str(refused.value).startswith("404: Repository Not Found for url: http://127.0.0.1")
        assert "make sure you are authenticated" in str(refused.value)
