"""TLS on both endpoints of a real server, with the TLS of stock clients: one-way, mutual, large
tensors, unknown clients, and wrong files."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.certificates import Certificates, make_certificates
from tests.server.gates import eventually
from tests.server.harness import Server, launch_naiad, naiad

COUNT = 2 << 20
"""Number of floats in a tensor that needs many TLS records."""

_HELLO = bytes.fromhex("0302") + bytes(32) + bytes.fromhex("00 0004 c013c014 0100")
HELLO_OF_TLS_1_1 = (
    b"\x16\x03\x01"
    + (len(_HELLO) + 4).to_bytes(2, "big")
    + b"\x01"
    + len(_HELLO).to_bytes(3, "big")
    + _HELLO
)
HANDSHAKE = b"\x16"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def flags(certificates: Certificates, *, is_mutual: bool) -> list[str]:
    use = "use-ssl-mutual" if is_mutual else "use-ssl"
    return [
        flag
        for protocol in ("grpc", "http")
        for flag in (
            f"--{protocol}-{use}=true",
            f"--{protocol}-server-cert={certificates.path('server.pem')}",
            f"--{protocol}-server-key={certificates.path('server.key')}",
            f"--{protocol}-root-cert={certificates.path('ca.pem')}",
        )
    ]


@pytest.fixture(scope="module")
def repository(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A repository of only two models, because both servers of this file load it."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("add_sub", "identity_fp32"):
        (folder / name).symlink_to(repositories / "main" / name)
    return str(folder)


@pytest.fixture(scope="module")
def one_way(repository: str, certificates: Certificates) -> Iterator[Server]:
    with naiad([repository], flags(certificates, is_mutual=False)) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(repository: str, certificates: Certificates) -> Iterator[Server]:
    with naiad([repository], flags(certificates, is_mutual=True)) as server:
        yield server


def context(certificates: Certificates, name: str = "") -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    if name:
        tls.load_cert_chain(certificates.path(f"{name}.pem"), certificates.path(f"{name}.key"))
    return tls


def https(server: Server, tls: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("127.0.0.1", server.http_port, timeout=20, context=tls)


def grpc_options(certificates: Certificates, name: str = "") -> dict[str, Any]:
    options = {"ssl": True, "root_certificates": certificates.path("ca.pem")}
    if name:
        options["private_key"] = certificates.path(f"{name}.key")
        options["certificate_chain"] = certificates.path(f"{name}.pem")
    return options


def identity(client: Any, module: Any, count: int) -> None:
    data = np.random.default_rng(2).random(count, np.float32)
    tensor = module.InferInput("INPUT0", [count], "FP32")
    tensor.set_data_from_numpy(data)
    assert np.array_equal(client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0"), data)


class TestOneWay:
    def test_http(self, one_way: Server, certificates: Certificates) -> None:
        connection = https(one_way, context(certificates))
        connection.request("GET", "/v2/health/ready")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        assert connection.sock.selected_alpn_protocol() is None  # http.client does not use ALPN.
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]}
        for _ in range(3):
            connection.request("POST", "/v2/models/identity_fp32/infer", json.dumps(body))
            inferred = json.loads(connection.getresponse().read())
            assert inferred["outputs"][0]["data"] == [1.0, 2.0, 3.0]
        connection.close()

    @pytest.mark.parametrize("count", [16, COUNT])
    def test_tritonclient_http(
        self, one_way: Server, certificates: Certificates, count: int
    ) -> None:
        options = {"ca_certs": certificates.path("ca.pem")}
        with http_client.InferenceServerClient(
            one_way.http, ssl=True, ssl_options=options, insecure=False
        ) as client:
            assert client.is_server_ready()
            identity(client, http_client, count)

    @pytest.mark.parametrize("count", [16, COUNT])
    def test_tritonclient_grpc(
        self, one_way: Server, certificates: Certificates, count: int
    ) -> None:
        with grpc_client.InferenceServerClient(
            f"localhost:{one_way.grpc_port}", **grpc_options(certificates)
        ) as client:
            assert client.is_server_ready()
            identity(client, grpc_client, count)

    def test_alpn_selects_the_protocol_of_the_endpoint(
        self, one_way: Server, certificates: Certificates
    ) -> None:
        for port, offered, chosen in (
            (one_way.grpc_port, ["h2", "http/1.1"], "h2"),
            (one_way.http_port, ["h2", "http/1.1"], "http/1.1"),
        ):
            tls = context(certificates)
            tls.set_alpn_protocols(offered)
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                tls.wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                assert secure.selected_alpn_protocol() == chosen

    def test_rejects_old_versions_of_tls(self, one_way: Server) -> None:
        for port in (one_way.grpc_port, one_way.http_port):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
                plain.sendall(HELLO_OF_TLS_1_1)
                assert plain.recv(1) != HANDSHAKE

    def test_a_client_rejects_an_unknown_authority(self, one_way: Server) -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            https(one_way, ssl.create_default_context()).request("GET", "/v2")

    def test_rejects_clients_without_tls(self, one_way: Server, certificates: Certificates) -> None:
        for port in (one_way.http_port, one_way.grpc_port):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
                plain.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" not in _read_all(plain)
        with (
            grpc_client.InferenceServerClient(one_way.grpc) as client,
            pytest.raises(InferenceServerException),
        ):
            client.is_server_live(client_timeout=5)
        connection = https(one_way, context(certificates))
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        connection.close()

    def test_survives_clients_that_disconnect_during_the_handshake(
        self, one_way: Server, certificates: Certificates
    ) -> None:
        for port in (one_way.http_port, one_way.grpc_port):
            for beginning in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"):
                with socket.create_connection(("127.0.0.1", port)) as plain:
                    plain.sendall(beginning)
        connection = https(one_way, context(certificates))
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200
        connection.close()

    def test_metrics_do_not_use_tls(self, one_way: Server) -> None:
        assert one_way.get("/metrics", "metrics")[0] == 200


def _read_all(sock: socket.socket) -> bytes:
    data = b""
    try:
        while piece := sock.recv(4096):
            data += piece
    except ConnectionError:
        pass
    return data


def _get_ready(connection: http.client.HTTPSConnection) -> None:
    connection.request("GET", "/v2/health/ready")
    connection.getresponse()


class TestMutual:
    def test_http(self, mutual: Server, certificates: Certificates) -> None:
        connection = https(mutual, context(certificates, "client"))
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        connection.close()

    def test_grpc(self, mutual: Server, certificates: Certificates) -> None:
        with grpc_client.InferenceServerClient(
            f"localhost:{mutual.grpc_port}", **grpc_options(certificates, "client")
        ) as client:
            assert client.is_server_ready()
            identity(client, grpc_client, 1024)

    @pytest.mark.parametrize("name", ["", "strange"])
    def test_rejects_unknown_clients_over_http(
        self, mutual: Server, certificates: Certificates, name: str
    ) -> None:
        connection = https(mutual, context(certificates, name))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            _get_ready(connection)
        connection.close()

    @pytest.mark.parametrize("name", ["", "strange"])
    def test_rejects_unknown_clients_over_grpc(
        self, mutual: Server, certificates: Certificates, name: str
    ) -> None:
        credentials = grpc.ssl_channel_credentials(
            certificates.read("ca.pem"),
            certificates.read(f"{name}.key") if name else None,
            certificates.read(f"{name}.pem") if name else None,
        )
        with grpc.secure_channel(f"localhost:{mutual.grpc_port}", credentials) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class TestWrongFiles:
    """Wrong files are an error at the start, before the server listens."""

    @pytest.mark.parametrize(
        ("protocol", "cert", "key", "message"),
        [
            ("http", "", "", "--{0}-use-ssl needs --{0}-server-cert"),
            ("grpc", "nonsense.pem", "server.key", "are no certificate and key in PEM"),
            ("http", "server.pem", "client.key", "is not the key of the certificate"),
        ],
    )
    def test_the_server_does_not_start(
        self,
        repository: str,
        certificates: Certificates,
        protocol: str,
        cert: str,
        key: str,
        message: str,
    ) -> None:
        options = [f"--{protocol}-use-ssl=true"]
        if cert:
            options.append(f"--{protocol}-server-cert={certificates.path(cert)}")
            options.append(f"--{protocol}-server-key={certificates.path(key)}")
        server = launch_naiad([repository], options)
        try:
            assert server.wait_exit(30) == 1
        finally:
            server.stop()
        assert any(
            "error: creating server: Invalid argument - " in line
            and message.format(protocol) in line
            for line in server.lines
        )


def test_certificates_replaced_under_load_fail_no_request(
    repository: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old = make_certificates(tmp_path_factory.mktemp("old"))
    new = make_certificates(tmp_path_factory.mktemp("new"))
    for name in ("server.pem", "server.key", "ca.pem"):
        shutil.copy(old.path(name), tmp_path / name)
    both = ssl.create_default_context(cadata=(old.read("ca.pem") + new.read("ca.pem")).decode())
    only_new = ssl.create_default_context(cafile=new.path("ca.pem"))
    counts: dict[str, int] = {"open": 0, "fresh": 0}
    failures: list[BaseException] = []
    is_over = threading.Event()

    def request(connection: http.client.HTTPSConnection) -> None:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200

    def load(server: Server, kind: str) -> None:
        connection = https(server, both)
        try:
            while not is_over.is_set():
                request(connection)
                counts[kind] += 1
                if kind == "fresh":
                    connection.close()
                else:
                    assert connection.sock is not None, "the server closed an open connection"
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    def serves_new() -> bool:
        connection = https(server, only_new)
        try:
            request(connection)
        except ssl.SSLCertVerificationError:
            return False
        finally:
            connection.close()
        return True

    with naiad([repository], flags(Certificates(tmp_path), is_mutual=False)) as server:
        threads = [
            threading.Thread(target=load, args=(server, kind))
            for kind in ("open", "open", "fresh", "fresh")
        ]
        for thread in threads:
            thread.start()
        try:
            assert not serves_new()
            eventually(lambda: min(counts.values()) > 5, "requests are served")
            for name in ("server.pem", "server.key", "ca.pem"):
                shutil.copy(new.path(name), tmp_path / "next")
                os.replace(tmp_path / "next", tmp_path / name)
            eventually(serves_new, "new connections see the new certificate")
            before = dict(counts)
            eventually(
                lambda: all(counts[kind] > before[kind] + 5 for kind in counts),
                "requests are served after the change",
            )
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        identity_over_grpc(server, new)
    assert failures == []


def identity_over_grpc(server: Server, certificates: Certificates) -> None:
    with grpc_client.InferenceServerClient(server.grpc, **grpc_options(certificates)) as client:
        identity(client, grpc_client, 16)
