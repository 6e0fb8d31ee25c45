"""Client certificates that stand for API keys, on a real server over HTTP and gRPC."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.certificates import Certificates, make_certificates
from tests.server.gates import eventually
from tests.server.harness import Server, naiad
from tests.server.test_keys import KeyCommand
from tests.server.test_tls import flags


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyCommand:
    command = KeyCommand(tmp_path_factory.mktemp("keys") / "keys.json")
    command.create("by-subject", "--client-subject", "CN=client")
    command.create("by-uri", "--client-subject", "URI:spiffe://example.com/named")
    return command


@pytest.fixture(scope="module")
def server(
    certificates: Certificates,
    keys: KeyCommand,
    repositories: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "add_sub").symlink_to(repositories / "main" / "add_sub")
    options = [*flags(certificates, is_mutual=True), "--api-key-file", str(keys.path)]
    with naiad([str(folder)], options) as one:
        yield one


class HttpConnection:
    """One kept-alive connection with a client certificate."""

    def __init__(self, server: Server, certificates: Certificates, name: str) -> None:
        context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
        context.load_cert_chain(certificates.path(f"{name}.pem"), certificates.path(f"{name}.key"))
        host, port = server.http.split(":")
        self._connection = http.client.HTTPSConnection(host, int(port), context=context)
        values = [float(value) for value in range(16)]
        self._body = json.dumps(
            {
                "inputs": [
                    {"name": name, "shape": [1, 16], "datatype": "FP32", "data": values}
                    for name in ("INPUT0", "INPUT1")
                ]
            }
        )

    def infer(self) -> tuple[int, str]:
        self._connection.request("POST", "/v2/models/add_sub/infer", self._body)
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def close(self) -> None:
        self._connection.close()


def grpc_connection(
    server: Server, certificates: Certificates, name: str
) -> grpc_client.InferenceServerClient:
    return grpc_client.InferenceServerClient(
        f"localhost:{server.grpc.split(':')[1]}",
        ssl=True,
        root_certificates=certificates.path("ca.pem"),
        private_key=certificates.path(f"{name}.key"),
        certificate_chain=certificates.path(f"{name}.pem"),
    )


def grpc_inputs() -> list[grpc_client.InferInput]:
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = grpc_client.InferInput(name, [1, 16], "FP32")
        tensor.set_data_from_numpy(np.arange(16, dtype=np.float32).reshape(1, 16))
        tensors.append(tensor)
    return tensors


def test_a_certificate_stands_for_a_key_until_it_is_revoked(
    server: Server, certificates: Certificates, keys: KeyCommand
) -> None:
    """Both connections stay open, and their later requests are on the fast path."""
    http, grpc = (
        HttpConnection(server, certificates, "client"),
        grpc_connection(server, certificates, "client"),
    )
    for _ in range(5):
        status, body = http.infer()
        assert status == 200, body
        grpc.infer("add_sub", grpc_inputs())
    keys.run("revoke", "by-subject")
    eventually(lambda: http.infer()[0] == 401, "the key is revoked")
    assert "was revoked" in http.infer()[1]
    with pytest.raises(InferenceServerException, match="was revoked"):
        grpc.infer("add_sub", grpc_inputs())
    http.close()
    grpc.close()


def test_an_alternative_name_stands_for_a_key(server: Server, certificates: Certificates) -> None:
    named = HttpConnection(server, certificates, "named")
    assert named.infer()[0] == 200
    named.close()
    with grpc_connection(server, certificates, "named") as client:
        client.infer("add_sub", grpc_inputs())


def test_a_certificate_that_no_key_names(server: Server, certificates: Certificates) -> None:
    unknown = HttpConnection(server, certificates, "server")
    status, body = unknown.infer()
    unknown.close()
    assert status == 401
    assert "no API key is for the client certificate 'CN=server'" in body
