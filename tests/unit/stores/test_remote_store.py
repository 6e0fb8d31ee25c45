"""A local copy of a remote repository: models are complete, nothing is fetched twice, everything is
checked, and no failure blocks it."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad import log
from naiad.errors import NaiadError
from naiad.repository.watch.fingerprint import fingerprint
from naiad.stores import download, remote_store, snapshot
from naiad.stores.bucket import RemoteFile, StoreError
from naiad.stores.download import Download
from naiad.stores.progress import LogProgress
from naiad.stores.remote_store import RemoteStore, is_safe_path
from tests.unit.stores.fake_bucket import FakeBucket

FILES = {
    "m/config.pbtxt": b"config",
    "m/1/model.py": b"the code of the model",
    "n/1/model.py": b"another",
    "n/1/empty": b"",
    "readme.txt": b"at the top, no model's",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr(download, "PART_BYTES", 8)
    monkeypatch.setattr(
        Download.__init__, "__kwdefaults__", {"part_bytes": 8, "max_parallel": 4, "stop": None}
    )


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket(FILES)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def open_store(bucket: FakeBucket, cache: Path, lines: list[str]) -> Callable[[], RemoteStore]:
    return lambda: RemoteStore(
        "s3://bucket", lambda: bucket, cache, LogProgress(lines.append, lambda: 0.0)
    )


def content(store: RemoteStore, name: str) -> dict[str, bytes]:
    directory = store.directory(name)
    assert directory is not None
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_model_is_fetched_completely(open_store: Callable[[], RemoteStore]) -> None:
    store = open_store()
    store.refresh()
    assert store.names() == {"m", "n"}
    assert content(store, "m") == {
        "config.pbtxt": b"config",
        "1/model.py": b"the code of the model",
    }
    assert content(store, "n") == {"1/model.py": b"another", "1/empty": b""}
    assert store.directory("nowhere") is None
    assert not store.has("readme.txt")


def test_nothing_is_fetched_twice(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    store = open_store()
    store.refresh()
    bucket.reads.clear()
    store.refresh()
    open_store().refresh()
    assert bucket.reads == []


def test_only_changed_files_are_fetched_and_others_keep_their_fingerprint(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    bucket.contents["m/2/model.py"] = b"second version"
    store = open_store()
    store.refresh()
    before, old = fingerprint(store.directory("m") or Path()), store.directory("m")
    bucket.reads.clear()
    bucket.contents["m/2/model.py"] = b"second version, changed"
    store.refresh()
    assert {path for path, _, _ in bucket.reads} == {"m/2/model.py"}
    after = fingerprint(store.directory("m") or Path())
    assert before.of_version(1) == after.of_version(1)
    assert before.of_version(2) != after.of_version(2)
    assert old is not None
    assert (old / "2" / "model.py").read_bytes() == b"second version", (
        "a copy that still serves keeps its files"
    )


def test_a_single_model_can_be_refreshed(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    store = open_store()
    store.refresh([])
    assert store.names() == {"m", "n"}
    assert bucket.reads == []
    assert content(store, "n")["1/model.py"] == b"another", "fetched when it was asked for"
    assert {path.partition("/")[0] for path, _, _ in bucket.reads} == {"n"}


def test_models_are_added_and_removed(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    store = open_store()
    store.refresh()
    del bucket.contents["n/1/model.py"], bucket.contents["n/1/empty"]
    bucket.contents["new/1/model.py"] = b"new"
    store.refresh()
    assert store.names() == {"m", "new"}
    assert store.directory("n") is None


def test_files_are_fetched_in_parallel_and_large_ones_in_parts(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    bucket.contents = {"m/1/weights": bytes(range(32))}
    bucket.gate = threading.Barrier(4)
    store = open_store()
    store.refresh()
    assert bucket.max_reading == 4
    assert content(store, "m")["1/weights"] == bytes(range(32))


def test_an_interrupted_part_is_resumed(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    bucket.breaks["m/1/model.py"] = 2
    store = open_store()
    store.refresh()
    assert content(store, "m")["1/model.py"] == FILES["m/1/model.py"]
    assert bucket.num_bytes == sum(
        len(text) for path, text in FILES.items() if path != "readme.txt"
    ), "no byte came twice"


def test_a_model_that_cannot_be_fetched_keeps_its_last_state(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    store = open_store()
    store.refresh()
    bucket.contents["m/1/model.py"] = b"a new version of it"
    bucket.contents["n/1/model.py"] = b"this one comes"
    bucket.refused.add("m/1/model.py")
    store.refresh()
    assert content(store, "m")["1/model.py"] == FILES["m/1/model.py"]
    assert content(store, "n")["1/model.py"] == b"this one comes"
    bucket.refused.clear()
    store.refresh()
    assert content(store, "m")["1/model.py"] == b"a new version of it"


def test_a_download_continues_after_the_server_was_killed(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, cache: Path
) -> None:
    bucket.contents = {"m/1/weights": bytes(range(40))}
    bucket.refused.add("m/1/weights")
    open_store().refresh()
    (partial,) = cache.glob("*/partial/*")
    partial.write_bytes(bytes(range(16)) + bytes(24))
    partial.with_name(f"{partial.name}.parts").write_text("8 0\n8 1\n8")
    bucket.refused.clear()
    bucket.reads.clear()
    store = open_store()
    store.refresh()
    assert sorted(start for _, start, _ in bucket.reads) == [16, 24, 32]
    assert content(store, "m")["1/weights"] == bytes(range(40))
    assert list(cache.glob("*/partial/*")) == []


@pytest.mark.parametrize("kind", ["sha256", "git"])
def test_content_must_match_the_checksum_of_the_store(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, kind: str
) -> None:
    text = FILES["m/1/model.py"]
    good = {
        "sha256": hashlib.sha256(text).hexdigest(),
        "git": hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest(),
    }
    bucket.digests["m/1/model.py"] = f"{kind}:{'0' * len(good[kind])}"
    store = open_store()
    store.refresh()
    assert store.directory("m") is None
    assert content(store, "n")["1/model.py"] == b"another"
    bucket.digests["m/1/model.py"] = f"{kind}:{good[kind]}"
    store.refresh()
    assert content(store, "m")["1/model.py"] == text


def test_a_file_that_changes_while_it_is_fetched_is_listed_again(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    listed = bucket.files

    def change_after_listing(directory: str) -> list[RemoteFile]:
        files = listed(directory)
        bucket.contents["m/1/model.py"] = b"changed meanwhile"
        return files

    bucket.files = change_after_listing  # type: ignore[method-assign]
    store = open_store()
    store.refresh()
    assert content(store, "m")["1/model.py"] == b"changed meanwhile"


# The store cannot be reached.


def test_an_unreachable_store_is_served_from_the_cache(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    open_store().refresh()
    bucket.is_down = True
    store = open_store()
    store.refresh()
    assert store.names() == {"m", "n"}
    assert content(store, "m")["1/model.py"] == FILES["m/1/model.py"]
    store.refresh(["m"])
    bucket.is_down = False
    bucket.contents["m/1/model.py"] = b"after it came back"
    store.refresh()
    assert content(store, "m")["1/model.py"] == b"after it came back"


def test_a_bucket_that_cannot_be_opened_is_unreachable(
    bucket: FakeBucket, cache: Path, open_store: Callable[[], RemoteStore]
) -> None:
    def broken() -> FakeBucket:
        raise StoreError("no credentials")

    open_store().refresh()
    store = RemoteStore("s3://bucket", broken, cache, LogProgress(lambda line: None))
    store.refresh()
    assert content(store, "m")["1/model.py"] == FILES["m/1/model.py"]


def test_an_unreachable_store_without_a_copy_is_an_error(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    bucket.is_down = True
    with pytest.raises(
        NaiadError, match="cannot be reached, and there is no copy of it: nobody answers"
    ):
        open_store().refresh()


def test_a_stopping_server_does_not_wait_for_a_download(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    store = open_store()
    store.close()
    store.refresh()
    assert store.directory("m") is None
    assert bucket.num_bytes == 0


# The cache folder must be private.


def test_the_cache_is_private(open_store: Callable[[], RemoteStore], cache: Path) -> None:
    open_store().refresh()
    for path in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.parent != cache, path
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in cache.glob("*/blobs/*"))


@pytest.mark.parametrize("how", ["content", "size", "link", "mode"])
def test_a_cached_file_that_was_modified_is_fetched_again(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, cache: Path, tmp_path: Path, how: str
) -> None:
    store = open_store()
    store.refresh()
    (blob,) = (
        path for path in cache.glob("*/blobs/*") if path.read_bytes() == FILES["m/1/model.py"]
    )
    match how:
        case "content":
            blob.write_bytes(b"X" * len(FILES["m/1/model.py"]))
        case "size":
            blob.write_bytes(b"short")
        case "link":
            blob.unlink()
            (tmp_path / "evil").write_bytes(FILES["m/1/model.py"])
            blob.symlink_to(tmp_path / "evil")
        case "mode":
            blob.chmod(0o666)
    bucket.reads.clear()
    store = open_store()
    store.refresh()
    assert {path for path, _, _ in bucket.reads} == {"m/1/model.py"}
    assert content(store, "m")["1/model.py"] == FILES["m/1/model.py"]


def test_a_damaged_copy_is_not_served_offline(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, cache: Path
) -> None:
    open_store().refresh()
    (blob,) = (
        path for path in cache.glob("*/blobs/*") if path.read_bytes() == FILES["m/1/model.py"]
    )
    blob.write_bytes(b"X" * len(FILES["m/1/model.py"]))
    bucket.is_down = True
    store = open_store()
    store.refresh()
    assert store.directory("m") is None
    assert content(store, "n")["1/model.py"] == b"another"


def test_a_snapshot_that_lost_a_file_is_rebuilt(open_store: Callable[[], RemoteStore]) -> None:
    store = open_store()
    store.refresh()
    directory = store.directory("m")
    assert directory is not None
    (directory / "1" / "model.py").unlink()
    store.refresh()
    assert content(store, "m")["1/model.py"] == FILES["m/1/model.py"]


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"url": 7}', b'{"url": "s3://other", "names": ["x"]}']
)
def test_a_broken_manifest_counts_as_empty(
    open_store: Callable[[], RemoteStore], cache: Path, text: bytes
) -> None:
    open_store().refresh()
    (manifest,) = cache.glob("*/manifest.json")
    manifest.write_bytes(text)
    store = open_store()
    assert store.names() == set()
    store.refresh()
    assert store.names() == {"m", "n"}


def test_a_folder_of_another_user_is_refused(
    cache: Path, bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(NaiadError, match="not a folder that belongs to this user"):
        RemoteStore("s3://bucket", lambda: bucket, cache, LogProgress(lambda line: None))


def test_a_folder_that_others_may_replace_is_refused(tmp_path: Path, bucket: FakeBucket) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NaiadError, match="other users may replace it"):
        RemoteStore(
            "s3://bucket",
            lambda: bucket,
            tmp_path / "open" / "cache",
            LogProgress(lambda line: None),
        )


def test_a_cache_folder_that_is_a_link_is_refused(tmp_path: Path, bucket: FakeBucket) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NaiadError, match="not safe to use"):
        RemoteStore(
            "s3://bucket", lambda: bucket, tmp_path / "cache", LogProgress(lambda line: None)
        )


@pytest.mark.parametrize(
    "key",
    [
        "m/../../evil",
        "../evil/x",
        "m//x",
        "m/./x",
        "m/a\\b",
        "m/a\0b",
        "m/a\nb",
        "/etc/x",
        "m/" + "n" * 300,
    ],
)
def test_keys_that_are_not_paths_are_ignored(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, tmp_path: Path, key: str
) -> None:
    bucket.contents[key] = b"evil"
    store = open_store()
    store.refresh()
    assert content(store, "m") == {
        "config.pbtxt": b"config",
        "1/model.py": b"the code of the model",
    }
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"
    ]
    assert not is_safe_path(key)


def test_old_states_are_deleted(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, cache: Path
) -> None:
    store = open_store()
    for number in range(10):
        bucket.contents["m/1/model.py"] = b"state %d" % number
        store.refresh()
    assert len(list(cache.glob("*/models/m/*"))) == 2
    assert sum(path.read_bytes().startswith(b"state") for path in cache.glob("*/blobs/*")) == 2


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(log, "error", found.append)
    monkeypatch.setattr(log, "warning", found.append)
    return found


def test_a_model_larger_than_the_free_disk_leaves_the_others(
    open_store: Callable[[], RemoteStore],
    bucket: FakeBucket,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[str],
) -> None:
    """The log has its line once, however often the store is polled."""

    class Full:
        free = 10

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Full)
    store = open_store()
    store.refresh()
    store.refresh()
    assert content(store, "n") == {"1/model.py": b"another", "1/empty": b""}
    assert store.directory("m") is None
    reason = "27 bytes have to be fetched, but the disk of the cache has only 3 left"
    assert store.failure("m") == reason.replace("only 3", "only 10")
    assert len(logged) == 1
    assert f"model 'm' could not be fetched ({reason})" in logged[0]
    Full.free = 1000
    store.refresh()
    assert content(store, "m")["config.pbtxt"] == b"config"
    assert store.failure("m") == ""


def test_a_disk_that_is_full_for_links_keeps_the_last_state(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.refresh()
    bucket.contents["m/config.pbtxt"] = b"new"
    bucket.contents["n/1/empty"] = b"new, too"
    make = snapshot.make_snapshot

    def full(folder: Path, name: str, files: list[RemoteFile], blobs: Path) -> Path:
        if name == "m":
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(folder, name, files, blobs)

    monkeypatch.setattr(remote_store, "make_snapshot", full)
    store.refresh()
    assert content(store, "m")["config.pbtxt"] == b"config"
    assert content(store, "n")["1/empty"] == b"new, too"


def test_a_cache_that_cannot_be_used_is_an_error(
    open_store: Callable[[], RemoteStore], cache: Path
) -> None:
    store = open_store()
    (next(iter(cache.iterdir())) / ".lock").mkdir()
    with pytest.raises(NaiadError, match="the cache of model repository 's3://bucket' cannot be"):
        store.refresh()


def test_servers_that_share_a_cache_keep_each_others_models(
    open_store: Callable[[], RemoteStore], bucket: FakeBucket
) -> None:
    one, other = open_store(), open_store()
    one.refresh(["m"])
    other.refresh(["n"])
    one.refresh(["m"])
    bucket.is_down = True
    for name in ("m", "n"):
        store = open_store()
        store.refresh([name])
        assert content(store, name)["1/model.py"] == FILES[f"{name}/1/model.py"]


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ({}, "model repository 's3://bucket' has no models: is its path right?"),
        (
            {"1/model.py": b""},
            "'s3://bucket' is a model, not a repository: use the folder that holds it",
        ),
    ],
)
def test_a_path_without_models_is_warned_of_once(
    open_store: Callable[[], RemoteStore],
    bucket: FakeBucket,
    logged: list[str],
    files: dict[str, bytes],
    hint: str,
) -> None:
    bucket.contents = dict(files)
    store = open_store()
    store.refresh()
    store.refresh()
    assert logged == [hint]


def test_progress_is_logged_at_the_start_and_the_end(
    open_store: Callable[[], RemoteStore], lines: list[str]
) -> None:
    open_store().refresh()
    assert lines[0] == "s3://bucket: fetching 4 files, 34 B"
    assert lines[-1] == "s3://bucket: fetched 34 B in 0.0 s"


def test_progress_is_logged_every_few_seconds() -> None:
    lines: list[str] = []
    now = [0.0]
    progress = LogProgress(lines.append, lambda: now[0])
    progress.start("x", 2_000_000_000, 3)
    for _ in range(20):
        now[0] += 1.0
        progress.advance(100_000_000)
    progress.finish()
    assert lines[1:-1] == [f"x: {percent}% of 2.0 GB, 100.0 MB/s" for percent in (25, 50, 75, 100)]
