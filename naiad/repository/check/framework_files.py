"""Checks model files of the frameworks: whether an ONNX file is whole, what kind of PyTorch file
this is, whether a checkpoint is there and can be read. Part of check.

In:  a completed configuration and its directory. Out: problems. No framework is needed; only ONNX
     files are also opened by onnxruntime, if it is installed. Nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from naiad.backends.llm.checkpoint import find_local
from naiad.backends.llm.checkpoint_kind import is_original, readable_checkpoint
from naiad.backends.llm.options import LlmOptions, read_options
from naiad.backends.llm.tensorrtllm.parameters import read_parameters
from naiad.backends.llm.vllm.arguments import ENGINE_FILE, read_arguments
from naiad.backends.onnx.file_fault import onnx_fault
from naiad.backends.served_config import ServedConfig
from naiad.backends.torch.archive import UNSAFE_ALLOW_PICKLE, FileKind, file_kind
from naiad.core.install_advice import install_command
from naiad.errors import NaiadError
from naiad.repository.check.onnx_session import session_fault
from naiad.repository.check.packages import IsInstalled
from naiad.repository.config.config import ModelConfigFile
from naiad.repository.config.config_json import config_to_json
from naiad.repository.config.problem import Problem
from naiad.repository.scan import select_versions

SHAPELESS = "no-shapes"
LLM_BACKENDS = frozenset({"llm", "vllm", "tensorrtllm"})


def check_model_file(
    file: ModelConfigFile,
    path: Path,
    shown: str,
    is_installed: IsInstalled,
    *,
    is_opened: bool,
) -> Iterator[Problem]:
    """`path` is the file of one version, which exists. `is_opened`: the backend will open it, so
    only what says more than the backend is looked for."""
    if path.is_dir():
        return
    match file.config.backend:
        case "onnxruntime":
            fault = onnx_fault(path)
            # Operators of a library are not known without it.
            has_library = bool(file.config.model_operations.op_library_filename)
            may_ask = not (fault or has_library or is_opened)
            if may_ask and is_installed("onnxruntime"):
                fault = session_fault(path)
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
            problems = _check_torch(file, path, shown)
            yield from (found for found in problems if not (is_opened and found.code == SHAPELESS))


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
            code=SHAPELESS,
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
                code="engine-package",
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
    file: ModelConfigFile,
    message: str,
    *,
    found: str = "",
    expected: str = "",
    fix: str = "",
    code: str = "checkpoint",
) -> Problem:
    return Problem(
        code=code,
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
