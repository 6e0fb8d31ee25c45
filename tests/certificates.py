"""Makes certificates for tests of TLS with the openssl command: for a server, a client, and a
client of an unknown authority."""

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


def make_certificates(folder: Path, address: str = "127.0.0.1") -> Certificates:
    """Writes ca.pem, which signs server.pem (for localhost and `address`), client.pem and
    named.pem (a client with alternative names), and
    strange-ca.pem, which signs strange.pem. The keys are *.key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make certificates")
    for authority in ("ca", "strange-ca"):
        _new(folder, authority, "-x509", "-subj", f"/CN={authority}")
    _signed(folder, "server", "ca", f"subjectAltName=DNS:localhost,IP:{address}")
    _signed(folder, "client", "ca", "extendedKeyUsage=clientAuth")
    _signed(folder, "named", "ca", "subjectAltName=URI:spiffe://example.com/named,DNS:named.test")
    _signed(folder, "strange", "strange-ca", "extendedKeyUsage=clientAuth")
    encryption = ["-aes128", "-passout", "pass:secret"]
    _openssl("pkey", "-in", f"{folder}/server.key", *encryption, "-out", f"{folder}/encrypted.key")
    (folder / "nonsense.pem").write_text("this is no certificate\n")
    return Certificates(folder)


def _new(folder: Path, name: str, *options: str) -> None:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem"]
    _openssl("req", *curve, *files, "-days", "2", *options)


def _signed(folder: Path, name: str, authority: str, extension: str) -> None:
    _new(folder, name, "-subj", f"/CN={name}")
    (folder / "extension").write_text(extension)
    request, signed = f"{folder}/{name}.pem", f"{folder}/{name}.signed"
    signer = ["-CA", f"{folder}/{authority}.pem", "-CAkey", f"{folder}/{authority}.key"]
    options = ["-CAcreateserial", "-days", "2", "-extfile", f"{folder}/extension"]
    _openssl("x509", "-req", "-in", request, *signer, *options, "-out", signed)
    Path(signed).rename(request)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
