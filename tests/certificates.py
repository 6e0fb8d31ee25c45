"""Certificates for tests of TLS, made by the openssl command: an authority, a server, a client, and
a stranger's authority."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest


class Certificates(msgspec.Struct, frozen=True):
    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def make_certificates(folder: Path) -> Certificates:
    """ca.pem signs server.pem (for localhost and 127.0.0.1) and client.pem; strange-ca.pem signs
    strange.pem. Keys are *.key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make certificates")
    for authority in ("ca", "strange-ca"):
        _new(folder, authority, "-x509", "-subj", f"/CN={authority}")
    _signed(folder, "server", "ca", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    _signed(folder, "client", "ca", "extendedKeyUsage=clientAuth")
    _signed(folder, "strange", "strange-ca", "extendedKeyUsage=clientAuth")
    _openssl(
        "pkey",
        "-in",
        f"{folder}/server.key",
        "-aes128",
        "-passout",
        "pass:secret",
        "-out",
        f"{folder}/encrypted.key",
    )
    (folder / "nonsense.pem").write_text("this is no certificate\n")
    return Certificates(folder)


def _new(folder: Path, name: str, *options: str) -> None:
    key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        f"{folder}/{name}.key",
    ]
    _openssl("req", *key, "-days", "2", "-out", f"{folder}/{name}.pem", *options)


def _signed(folder: Path, name: str, authority: str, extension: str) -> None:
    _new(folder, name, "-subj", f"/CN={name}")
    (folder / "extension").write_text(extension)
    signer = [
        "-CA",
        f"{folder}/{authority}.pem",
        "-CAkey",
        f"{folder}/{authority}.key",
        "-CAcreateserial",
    ]
    request = f"{folder}/{name}.pem"
    _openssl(
        "x509",
        "-req",
        "-in",
        request,
        *signer,
        "-days",
        "2",
        "-extfile",
        f"{folder}/extension",
        "-out",
        f"{folder}/{name}.signed",
    )
    (folder / f"{name}.signed").rename(request)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
