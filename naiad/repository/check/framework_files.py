"""Checks model files of the frameworks without the frameworks: whether an ONNX file is whole, what
kind of PyTorch file this is, whether a checkpoint is there and can be read. Part of check.

In:  a completed configuration and its directory. Out: problems. Nothing is loaded or run.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from naiad.backends.llm.checkpoint import find_local
from naiad.backends.llm.checkpoint_kind import is_original, readable_checkpoint
from naiad.backends.llm.options import LlmOptions, read_options
from naiad.backends.llm.tensorrtllm_parameters import read_parameters
from naiad.backends.llm.vllm_arguments import ENGINE_FILE, read_arguments
from naiad.backends.served_config import ServedConfig
from naiad.backends.torch.archive import UNSAFE_ALLOW_PICKLE, FileKind, file_kind
from naiad.core.install_advice import install_command
from naiad.errors import NaiadError
from naiad.repository.check.packages import IsInstalled
from naiad.repository.config.config import ModelConfigFile
from naiad.repository.config.config_json import config_to_json
from naiad.repository.config.problem import Problem
from naiad.repository.scan import select_versions

LLM_BACKENDS = frozenset({"llm", "vllm", "tensorrtllm"})
_GRAPH_FIELD = 7
"""`graph` of onnx.ModelProto."""


def check_model_file(file: ModelConfigFile, path: Path, shown: str) -> Iterator[Problem]:
    """`path` is the file of one version, which exists."""
    if path.is_dir():
        return
    match file.config.backend:
        case "onnxruntime":
            fault = onnx_fault(path)
            if fault:
                yield Problem(
                    code="onnx-file",
                    message=f"{shown} is not a complete ONNX model",
                    file=shown,
                    found=fault,
                    expected="a file that was written by an ONNX exporter, complete",
                    fix="export or copy the model again",
                )
        case "pytorch":
            yield from _check_torch(file, path, shown)


def onnx_fault(path: Path) -> str:
    """Reads the outermost fields of the protobuf message. Empty if nothing is wrong with them."""
    size = path.stat().st_size
    if size == 0:
        return "the file is empty"
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:7] == b"version" and b"git-lfs" in data[:64]:
            return "it is a Git LFS pointer, not the file itself"
        position, has_graph = 0, False
        while position < size:
            tag, position = _varint(data, position, size)
            length = 0
            match tag & 7 if tag > 0 else -1:
                case 0:
                    length, position = 0, _varint(data, position, size)[1]
                case 1:
                    length = 8
                case 2:
                    length, position = _varint(data, position, size)
                case 5:
                    length = 4
                case _:
                    return "it does not parse as protobuf"
            if position < 0 or length < 0:
                return "it does not parse as protobuf"
            if position + length > size:
                missing = position + length - size
                return f"it ends too early: {missing} bytes are missing"
            has_graph = has_graph or (tag >> 3 == _GRAPH_FIELD and tag & 7 == 2)
            position += length
    return "" if has_graph else "it has no graph"


def _varint(data: mmap.mmap, position: int, size: int) -> tuple[int, int]:
    """(value, position after it); (-1, -1) if there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if not 0 <= position < size:
            return -1, -1
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    return -1, -1


def _check_torch(file: ModelConfigFile, path: Path, shown: str) -> Iterator[Problem]:
    config = file.config
    if path.suffix == ".py":
        return
    try:
        kind = file_kind(str(path), shown)
    except NaiadError as error:
        yield Problem(
            code="torch-file",
            message=error.message,
            file=shown,
            expected="a file of torch.jit.save or torch.export.save",
            fix="save or copy the model again",
        )
        return
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    is_trusted = parameters.get(UNSAFE_ALLOW_PICKLE, "").lower() == "true"
    if kind is FileKind.PICKLE and not is_trusted:
        yield Problem(
            code="torch-pickle",
            message=(
                f"{shown} is a pickle of torch.save, which is not opened: it could run any code"
            ),
            file=shown,
            found="torch.save(model)",
            expected="TorchScript (torch.jit.save) or a torch.export program (torch.export.save)",
            fix=f'save it so, or set parameter {UNSAFE_ALLOW_PICKLE} to "true" if you trust it',
        )
    elif kind is FileKind.TORCHSCRIPT and not (config.input or config.output):
        yield Problem(
            code="no-shapes",
            message=f"model '{config.name}' has no input and output in its config, and TorchScript "
            "does not tell their shapes",
            file=shown,
            found="no config.pbtxt that names them",
            expected=f"input and output in {config.name}/config.pbtxt",
            fix="naiad check --write --example x=1,3,224,224 REPOSITORY writes it for an input",
        )


def check_checkpoint(file: ModelConfigFile, is_installed: IsInstalled) -> Iterator[Problem]:
    """Checks language models: the parameters, whether the checkpoint is there, what it is, and
    whether an engine for it is installed."""
    config = file.config
    for version in select_versions(file.versions, config.version_policy):
        directory = file.directory.versions[version]
        bases = [directory, file.directory.path]
        try:
            options = _options(file, directory)
            path = find_local(options.checkpoint or ".", bases)
            if path is None:
                continue  # an id on the hub
            path = readable_checkpoint(path, file.directory.path.absolute().parent)
            is_dummy = options.settings.load_format == "dummy"
            if path.is_dir() and not (is_dummy or is_original(path) or _is_openvino(path)):
                yield _checkpoint_problem(
                    file,
                    f"checkpoint '{path.name}' is not complete",
                    found=_listing(path),
                    expected="config.json with model_type, and *.safetensors or pytorch_model.bin",
                )
                continue
        except NaiadError as error:
            message, _, rest = error.message.partition(": ")
            expected = rest.removeprefix("expected ") if rest.startswith("expected ") else ""
            yield _checkpoint_problem(
                file, message, expected=expected, fix="" if expected else rest
            )
            continue
        engines = [name for name in ("torch", "openvino_genai") if is_installed(name)]
        is_openvino = path.suffix == ".gguf" or _is_openvino(path)
        if not engines or (engines == ["openvino_genai"] and not is_openvino):
            yield _checkpoint_problem(
                file,
                f"no engine for checkpoint '{path.name}' is installed",
                found="neither torch nor openvino-genai" if not engines else "only openvino-genai",
                fix=install_command("llm"),
            )


def _options(file: ModelConfigFile, directory: Path) -> LlmOptions:
    """Raises NaiadError."""
    config = msgspec.json.decode(config_to_json(file.config), type=ServedConfig)
    match file.config.backend:
        case "vllm":
            return read_arguments(config.name, directory / ENGINE_FILE)[0]
        case "tensorrtllm":
            return read_parameters(config).options
    return read_options(config)


def _checkpoint_problem(
    file: ModelConfigFile, message: str, *, found: str = "", expected: str = "", fix: str = ""
) -> Problem:
    return Problem(
        code="checkpoint",
        message=message,
        file=f"{file.config.name}/config.pbtxt",
        found=found,
        expected=expected,
        fix=fix,
    )


def _is_openvino(path: Path) -> bool:
    return (path / "openvino_model.xml").is_file()


def _listing(path: Path) -> str:
    return ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
