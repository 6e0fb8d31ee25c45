"""Certificate files -> an SSLContext, and what is said of files that do not do."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError
from naiad.transport.tls import HTTP2, TlsFiles, build_tls_context
from tests.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def files(
    made: Certificates,
    cert: str = "server.pem",
    key: str = "server.key",
    root: str = "",
    **more: bool,
) -> TlsFiles:
    return TlsFiles(
        "grpc",
        made.path(cert) if cert else "",
        made.path(key) if key else "",
        made.path(root) if root else "",
        **more,
    )


def refusal(given: TlsFiles) -> str:
    with pytest.raises(NaiadError) as caught:
        build_tls_context(given, HTTP2)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def test_a_server(made: Certificates) -> None:
    context = build_tls_context(files(made), HTTP2)
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_clients_must_show_a_certificate(made: Certificates) -> None:
    context = build_tls_context(files(made, root="ca.pem", is_mutual=True), HTTP2)
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_missing_flags(made: Certificates) -> None:
    assert refusal(files(made, cert="")) == "--grpc-use-ssl needs --grpc-server-cert"
    assert refusal(files(made, key="")) == "--grpc-use-ssl needs --grpc-server-key"
    assert refusal(files(made, is_mutual=True)) == "--grpc-use-ssl-mutual needs --grpc-root-cert"


def test_missing_files(made: Certificates, tmp_path: Path) -> None:
    path = str(tmp_path / "none.pem")
    assert (
        refusal(TlsFiles("http", path, path))
        == f"--http-server-cert: cannot read '{path}': No such file or directory"
    )
    assert "Is a directory" in refusal(TlsFiles("http", str(tmp_path), str(tmp_path)))


def test_no_certificate(made: Certificates) -> None:
    assert refusal(files(made, cert="nonsense.pem")).startswith(
        f"--grpc-server-cert: '{made.path('nonsense.pem')}' and "
    )


def test_the_key_of_another(made: Certificates) -> None:
    expected = (
        f"--grpc-server-key: '{made.path('client.key')}' is not the key of the certificate "
        f"'{made.path('server.pem')}'"
    )
    assert refusal(files(made, key="client.key")) == expected


def test_an_encrypted_key_does_not_ask_for_its_password(made: Certificates) -> None:
    words = (
        f"--grpc-server-key: '{made.path('encrypted.key')}' is encrypted; the server needs a "
        "key without a password"
    )
    assert refusal(files(made, key="encrypted.key")) == words


def test_authorities_that_are_none(made: Certificates) -> None:
    assert "holds no certificates" in refusal(files(made, root="nonsense.pem", is_mutual=True))
