"""Load requests that change a model's config on a server that takes no files: none may change what
runs, and extreme numbers in what may be changed stop nothing."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from naiad.pb import grpc_service_pb2 as pb
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.override_check import OPEN
from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target
from tests.config_fields import PATHS, decide

FLAGS = ("--model-control-mode=explicit", "--load-model=*", "--allow-file-override=false")
MODEL = "identity_fp32"
NUMBERS = (2**31 - 1, 2**32 - 1, 2**63 - 1, -1)


@attack(64 * MIB, flags=FLAGS)
def load_configs(target: Target) -> None:
    before = _served(target)
    with tempfile.TemporaryDirectory() as folder:
        proof = Path(folder) / "proof"
        for what, config in _closed_changes(before, Path(folder), proof):
            for load in (_load_http, _load_grpc):
                answer = load(target, config)
                assert answer != "OK", f"{load.__name__} has changed {what}"
                assert _served(target) == before, f"{load.__name__}, {what}: {answer}"
        assert not proof.exists(), "a load request has run code"
    for what, config in _extremes(before):
        answer = _load_http(target, config)
        assert "internal error" not in answer, (what, answer)
    assert _load_http(target, json_format.MessageToDict(before)) == "OK"
    assert _served(target) == before


def _served(target: Target) -> ModelConfig:
    status, body = target.get(f"/v2/models/{MODEL}/config")
    assert status == 200, body
    return json_format.Parse(body, ModelConfig())


def _closed_changes(
    before: ModelConfig, folder: Path, proof: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field that is not open, and some changes that would run code."""
    for path in PATHS:
        config = ModelConfig()
        config.CopyFrom(before)
        decide(config, path, changed=True)
        name = ".".join(path)
        # The field itself may be open, and a message above it that it needs closed.
        is_closed = any(name.startswith(f"{closed}.") or name == closed for closed in CLOSED)
        if is_closed and config != before:
            yield name, json_format.MessageToDict(config)
    plain = json_format.MessageToDict(before)
    for name, value in {
        "EXECUTION_ENV_PATH": str(_environment(folder, proof)),
        "PYTHON_VENV": "/",
        "PYTHON_VERSION": "3.12",
        "ENV:LD_PRELOAD": "/tmp/x.so",
    }.items():
        parameters = {**plain.get("parameters", {}), name: {"string_value": value}}
        yield name, {**plain, "parameters": parameters}
    checkpoint = {"string_value": str(folder)}
    trust = {"string_value": "true"}
    parameters = {"checkpoint": checkpoint, "engine": {"string_value": "native"}}
    yield (
        "a checkpoint",
        {"backend": "llm", "parameters": {**parameters, "trust_remote_code": trust}},
    )
    step = {"model_name": "add_sub", "model_version": -1}
    yield "an ensemble", {"platform": "ensemble", "ensemble_scheduling": {"step": [step]}}


CLOSED = {
    ".".join(path)
    for path in PATHS
    if ".".join(path) not in OPEN
    and not any(name.startswith(".".join(path) + ".") for name in OPEN)
}
"""Fields that are closed, and so is everything below them."""


def _extremes(before: ModelConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in PATHS:
        if ".".join(path) not in OPEN:
            continue
        for number in NUMBERS:
            document = json_format.MessageToDict(before, preserving_proto_field_name=True)
            node: Any = document
            for name in path[:-1]:
                if isinstance(node.get(name), list):
                    node = node[name][0]
                else:
                    node = node.setdefault(name, {})
                    node = node.setdefault("7", {}) if name.startswith("priority_queue") else node
            repeated = path[-1] == "preferred_batch_size"
            node[path[-1]] = [number] if repeated else number
            yield f"{'.'.join(path)} = {number}", document


def _environment(folder: Path, proof: Path) -> Path:
    """An archive whose interpreter leaves a proof."""
    script = f"#!/bin/sh\nid -u > {proof}\nexit 1\n".encode()
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for name in ("python", "python3", "python3.11", "python3.12"):
            member = tarfile.TarInfo(f"bin/{name}")
            member.size, member.mode = len(script), 0o755
            file.addfile(member, io.BytesIO(script))
    return archive


def _load_http(target: Target, config: dict[str, Any]) -> str:
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    path = f"/v2/repository/models/{MODEL}/load"
    status, reply = target.post(path, body, {"Content-Type": "application/json"})
    return "OK" if status == 200 else f"{status} {reply.decode()}"


def _load_grpc(target: Target, config: dict[str, Any]) -> str:
    request = pb.RepositoryModelLoadRequest(model_name=MODEL)
    request.parameters["config"].string_param = json.dumps(config)
    return target.call("RepositoryModelLoad", request.SerializeToString())
