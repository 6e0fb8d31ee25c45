"""A server with a model of every installed backend looks no name up, connects to nobody beyond this
machine, and no library of it leaves a device id or a report in the home folder."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.machine.telemetry import OFF
from tests.server import framework_repository as models
from tests.server.gates import text
from tests.server.harness import Server, launch_naiad, tree_without_frontends
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.outgoing import Outgoing

IMPORTED = (
    *(
        "openvino",
        "openvino_genai",
        "onnxruntime",
        "torch",
        "transformers",
        "huggingface_hub",
        "xgrammar",
        "optuna",
    ),
    *("opentelemetry.sdk.trace", "obstore", "redis", "tiktoken", "accelerate", "gguf", "ray"),
)
IMPORTER = f"""
import importlib
import socket
import numpy as np
import triton_python_backend_utils as pb_utils

for name in {IMPORTED!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise


class TritonPythonModel:
    def execute(self, requests):
        for call in (
            lambda: socket.getaddrinfo("model.example", 80),
            lambda: socket.create_connection(("192.0.2.1", 80)),
        ):
            try:
                call()
            except OSError:
                pass
        (tensor,) = requests[0].inputs()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])]
"""
IMPORTER_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
IDENTITY_CONFIG = """
backend: "identity"
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
OPENVINO_IR = """<?xml version="1.0"?>
<net name="relu" version="11">
<layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1,4" element_type="f32"/>
<output><port id="0" precision="FP32" names="x"><dim>1</dim><dim>4</dim></port></output></layer>
<layer id="1" name="y" type="ReLU" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim><dim>4</dim></port></input>
<output><port id="1" precision="FP32" names="y"><dim>1</dim><dim>4</dim></port></output></layer>
<layer id="2" name="result" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim><dim>4</dim></port></input></layer>
</layers>
<edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges>
</net>
"""
TORCH_CLASS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""
TORCH_CONFIG = """
backend: "pytorch"
runtime: "model.py"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def is_installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


def write_repository(folder: Path) -> Path:
    repository = folder / "repository"
    write_model(repository, "importer", IMPORTER_CONFIG, {"1/model.py": IMPORTER})
    write_model(repository, "identity", IDENTITY_CONFIG)
    models.add(repository, "onnx", "model.onnx", models.linear())
    if is_installed("openvino"):
        models.add(repository, "openvino", "model.xml", OPENVINO_IR.encode())
        (repository / "openvino/1/model.bin").write_bytes(b"")
    if is_installed("torch"):
        write_model(repository, "pytorch", TORCH_CONFIG, {"1/model.py": TORCH_CLASS})
    if is_installed("torch", "transformers", "tokenizers"):
        settings = {"checkpoint": write_checkpoint(folder / "checkpoint"), "engine": "native"}
        lines = (parameter(name, value) for name, value in settings.items())
        write_model(repository, "llm", 'backend: "llm"\n' + "".join(lines))
    return repository


@pytest.fixture(scope="module")
def outgoing(tmp_path_factory: pytest.TempPathFactory) -> Outgoing:
    return Outgoing(tmp_path_factory.mktemp("outgoing"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, outgoing: Outgoing, home: Path
) -> Iterator[Server]:
    """Not in the surroundings of CI, which libraries recognise and leave alone."""
    repository = write_repository(tmp_path_factory.mktemp("privacy"))
    kept = [name for name in os.environ if name not in OFF and not name.startswith("XDG_")]
    unset = [f"--unset={name}" for name in os.environ if name not in kept or name == "CI"]
    server = launch_naiad(
        [str(repository)],
        ["--exit-on-error=true"],
        {"HOME": str(home), "LD_PRELOAD": str(outgoing.library)},
        ["env", *unset],
    )
    try:
        yield server.wait_started()
    finally:
        server.stop()


def infer(server: Server, model: str) -> None:
    status, body = server.post(
        f"/v2/models/{model}/infer", {"inputs": [text("IN", "a", is_batched=False)]}
    )
    assert status == 200, body


def test_no_library_reports_by_itself(server: Server, outgoing: Outgoing, home: Path) -> None:
    infer(server, "identity")
    assert not outgoing.tried
    # Reports are stored before they are sent, some seconds later.
    assert {path.name for path in home.iterdir()} <= {".cache", ".local"}
    for folder in (".cache", ".local/state"):
        assert {path.name for path in home.glob(f"{folder}/*")} <= {"naiad"}


@pytest.mark.slow
def test_nor_later(server: Server, outgoing: Outgoing) -> None:
    """onnxruntime, where it reports, looks the name up after nine seconds."""
    end_s = time.monotonic() + 15
    while time.monotonic() < end_s:
        infer(server, "identity")
        assert not outgoing.tried


def test_what_a_model_tries_is_seen(server: Server, outgoing: Outgoing) -> None:
    """Shows that the tests above could fail, in every process."""
    for pid in tree_without_frontends(server):
        process = Path(f"/proc/{pid}")
        if b"text_launcher" in (process / "cmdline").read_bytes():
            # It, and the text processes that it forks, have only a few variables.
            variables = (process / "environ").read_bytes().split(b"\0")
            assert {f"{name}={value}".encode() for name, value in OFF.items()} <= set(variables)
        else:
            assert outgoing.library.name in (process / "maps").read_text(), pid
    infer(server, "importer")
    assert outgoing.tried == {"name model.example", "address 192.0.2.1"}
