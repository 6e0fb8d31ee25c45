"""TLS for a listening port: certificate files -> an SSLContext, with ALPN and, where asked for,
certificates of clients.

Rule: faults of the files are found and reported here, at start. A password is never prompted for,
      and a setting is never weakened.
"""

from __future__ import annotations

import os
import ssl
from typing import NoReturn

import msgspec

from naiad.errors import NaiadError, invalid_arg

HANDSHAKE_TIMEOUT_S = 15.0
HTTP1, HTTP2 = "http/1.1", "h2"


class TlsFiles(msgspec.Struct, frozen=True):
    flag: str
    """The common beginning of the flags, for messages: grpc or http."""
    cert: str
    key: str
    root: str = ""
    """The certificates that sign the clients' certificates."""
    is_mutual: bool = False
    """Clients must present a certificate that `root` has signed."""


def build_tls_context(files: TlsFiles, alpn: str) -> ssl.SSLContext:
    """Raises NaiadError."""
    _check_readable(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_SINGLE_ECDH_USE
    context.set_alpn_protocols([alpn])
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_password)
    except _EncryptedKeyError:
        raise invalid_arg(
            f"--{files.flag}-server-key: '{files.key}' is encrypted; the server needs a key "
            "without a password"
        ) from None
    except ssl.SSLError as error:
        raise _unusable(files, error) from error
    if files.is_mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.root)
        except ssl.SSLError as error:
            raise invalid_arg(
                f"--{files.flag}-root-cert: '{files.root}' holds no certificates: {_reason(error)}"
            ) from error
    return context


def _check_readable(files: TlsFiles) -> None:
    wanted = [("server-cert", files.cert), ("server-key", files.key)]
    if files.is_mutual:
        wanted.append(("root-cert", files.root))
    for name, path in wanted:
        if not path:
            use = "use-ssl-mutual" if files.is_mutual else "use-ssl"
            raise invalid_arg(f"--{files.flag}-{use} needs --{files.flag}-{name}")
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise invalid_arg(
                f"--{files.flag}-{name}: cannot read '{path}': {os.strerror(error.errno or 0)}"
            ) from error


def _unusable(files: TlsFiles, error: ssl.SSLError) -> NaiadError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return invalid_arg(
            f"--{files.flag}-server-key: '{files.key}' is not the key of the certificate "
            f"'{files.cert}'"
        )
    return invalid_arg(
        f"--{files.flag}-server-cert: '{files.cert}' and '{files.key}' are no certificate and "
        f"key in PEM: {_reason(error)}"
    )


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "not PEM").replace("_", " ").lower()


class _EncryptedKeyError(Exception):
    pass


def _refuse_password() -> NoReturn:
    raise _EncryptedKeyError
