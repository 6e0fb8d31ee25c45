"""A real S3-compatible server (moto) as a process on the loopback interface, and its buckets."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class S3Server:
    """A server process. After `stop`, `start` uses the same port again, so that URLs of
    repositories stay valid."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **KEYS},
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if match := re.search(r"Running on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(match[1])
                break
        else:
            raise AssertionError("the S3 server did not start")
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Kills the process. Its buckets are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
            config=Config(retries={"max_attempts": 1}),
        )

    def url(self, bucket: str, prefix: str = "") -> str:
        return f"s3://127.0.0.1:{self.port}/{bucket}{'/' + prefix if prefix else ''}"

    def make_bucket(self, name: str, files: Mapping[str, bytes] | None = None) -> None:
        self.client().create_bucket(Bucket=name)
        self.put(name, files or {})

    def put(self, bucket: str, files: Mapping[str, bytes]) -> None:
        client = self.client()
        for key, content in files.items():
            client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, *keys: str) -> None:
        client = self.client()
        for key in keys:
            client.delete_object(Bucket=bucket, Key=key)

    def upload(self, bucket: str, folder: Path, prefix: str = "") -> None:
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.put(bucket, {f"{prefix}{key}": content for key, content in files.items()})


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()
