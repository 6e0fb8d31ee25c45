"""Signed tokens of an identity provider on a real server, with the stock clients."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.fakes.tokens import AUDIENCE, ISSUER, IdentityProvider
from tests.server.gates import eventually
from tests.server.harness import Server, naiad


class Provider(IdentityProvider):
    """An identity provider that publishes its keys in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(time.time())
        self.path = folder / "jwks.json"
        self.audit_path = folder / "audit.jsonl"
        self.publish()

    def publish(self) -> None:
        self.path.write_bytes(self.key_set())


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return Provider(tmp_path_factory.mktemp("provider"))


@pytest.fixture(scope="module")
def server(
    provider: Provider, repositories: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "add_sub").symlink_to(repositories / "main" / "add_sub")
    flags = ["--jwt-jwks", str(provider.path), "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE]
    with naiad([str(folder)], [*flags, "--audit-log", str(provider.audit_path)]) as one:
        yield one


def infer(server: Server, module: object, token: str) -> None:
    address = server.http if module is http_client else server.grpc
    with module.InferenceServerClient(address) as client:  # type: ignore[attr-defined]
        tensors = []
        for name in ("INPUT0", "INPUT1"):
            tensor = module.InferInput(name, [1, 16], "FP32")  # type: ignore[attr-defined]
            tensor.set_data_from_numpy(np.arange(16, dtype=np.float32).reshape(1, 16))
            tensors.append(tensor)
        for _ in range(3):  # the later ones are on the fast path
            client.infer("add_sub", tensors, headers={"authorization": f"Bearer {token}"})


@pytest.mark.parametrize("module", [http_client, grpc_client])
def test_tritonclient_sends_a_token(server: Server, provider: Provider, module: object) -> None:
    infer(server, module, provider.token())
    for claims, message in (
        ({"exp": 1}, "the token has expired"),
        ({"aud": "shop"}, "is for the audience 'shop', expected 'naiad'"),
        ({"scope": "openid"}, "does not have the scope 'inference'"),
        ({"naiad_models": "digits"}, "unknown model: 'add_sub'"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            infer(server, module, provider.token(**claims))
    limited = provider.token(naiad_rpm=2, sub=f"limited-{module.__name__}")  # type: ignore[attr-defined]
    with pytest.raises(InferenceServerException, match="has reached its limit of 2 requests"):
        infer(server, module, limited)


def test_a_token_of_a_new_key_is_valid_once_the_file_has_the_key(
    server: Server, provider: Provider
) -> None:
    provider.add_key("second", "RS256")
    token = provider.token("second")
    with pytest.raises(InferenceServerException, match="'second' of the token is not a key of"):
        infer(server, http_client, token)
    provider.publish()
    request = urllib.request.Request(
        f"http://{server.http}/v2", headers={"authorization": f"Bearer {token}"}
    )
    eventually(lambda: server.fetch(request)[0] == 200, "the server knows the new key")
    infer(server, grpc_client, token)


def test_the_subject_is_in_the_audit_log_and_the_metrics(
    server: Server, provider: Provider
) -> None:
    infer(server, http_client, provider.token(sub="audited"))

    def audited() -> list[dict[str, object]]:
        lines = provider.audit_path.read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["key"] == f"{ISSUER}|audited"]

    eventually(lambda: len(audited()) == 3, "three lines")
    assert {line["model"] for line in audited()} == {"add_sub"}
    page = urllib.request.Request(f"http://127.0.0.1:{server.metrics_port}/metrics")
    metrics = server.fetch(page)[1].decode()
    assert f'naiad_api_key_requests_total{{key="{ISSUER}|audited"}} 3' in metrics
    assert "naiad_jwt_key_set_valid 1" in metrics
    assert not any(
        part in provider.audit_path.read_text() + server.tail(1000) for part in ("eyJ", "Bearer")
    )
