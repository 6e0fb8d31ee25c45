"""Loads a PyTorch file: TorchScript, torch.export, AOTInductor, or a Python class with weights.

In:  the version directory and the config. Out: a Program on the instance's device, or NaiadError.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from typing import Any

import torch

from naiad.backends.python.model_module import extend_path, import_file, version_dir
from naiad.backends.served_config import ServedConfig
from naiad.backends.signature import Signature, TensorSignature
from naiad.backends.torch.archive import (
    UNSAFE_ALLOW_PICKLE,
    FileKind,
    file_kind,
    pickle_error,
    require_no_pickle,
)
from naiad.backends.torch.program import DICTIONARY, STRINGS, TENSOR, Argument, Program
from naiad.backends.torch.tensor import DATATYPES
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.ipc.work import LoadArguments

FORCE_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
PYTHON_RUNTIME = "model.py"
COMPILE = "TORCH_COMPILE"
COMPILE_OPTIONS = "TORCH_COMPILE_OPTIONAL_PARAMETERS"


def load_program(
    arguments: LoadArguments, config: ServedConfig, device: Any, notes: list[str]
) -> Program:
    """Raises NaiadError."""
    is_unsafe = config.flag(UNSAFE_ALLOW_PICKLE, False)
    if is_unsafe:
        notes.append(
            f"{UNSAFE_ALLOW_PICKLE} is set for model '{config.name}': its files may run any code "
            "while they are loaded"
        )
    else:
        os.environ[FORCE_WEIGHTS_ONLY] = "1"
    path, shown = _find(arguments, config)
    try:
        with warnings.catch_warnings():
            # PyTorch warns that TorchScript is deprecated, which is not news to its users.
            warnings.simplefilter("ignore")
            program = _load(path, shown, config, device, is_unsafe=is_unsafe)
    except NaiadError:
        raise
    except Exception as error:
        raise internal(
            f"failed to load model '{config.name}': '{shown}': {_first_lines(error, arguments)}"
        ) from error
    return _compiled(program, config)


def _find(arguments: LoadArguments, config: ServedConfig) -> tuple[str, str]:
    directory = version_dir(arguments)
    names = [arguments.model_filename or "model.pt"]
    if config.runtime == PYTHON_RUNTIME:
        # Auto-complete may have set the name of a weights file, although there is a class.
        names = [PYTHON_RUNTIME, *names] if names[0] in ("model.pt", "model.pt2") else names
    elif names == ["model.pt"]:
        names.append("model.pt2")
    name = next((name for name in names if os.path.exists(os.path.join(directory, name))), names[0])
    return os.path.join(directory, name), f"{arguments.model_name}/{arguments.model_version}/{name}"


def _load(path: str, shown: str, config: ServedConfig, device: Any, *, is_unsafe: bool) -> Program:
    if path.endswith(".py"):
        return _load_class(path, shown, device)
    match file_kind(path, shown):
        case FileKind.TORCHSCRIPT:
            return _load_torchscript(path, device)
        case FileKind.EXPORTED:
            if not is_unsafe:
                require_no_pickle(path, shown)
            return _load_exported(path, device)
        case FileKind.AOT:
            return _load_aot(path, device)
        case FileKind.PICKLE:
            return _load_pickle(path, shown, device, is_unsafe=is_unsafe)


# TorchScript.


def _load_torchscript(path: str, device: Any) -> Program:
    jit: Any = torch.jit
    module = jit.load(path, map_location=device)
    module.eval()
    schema = module.forward.schema
    # The first argument is the module itself.
    arguments = [_script_argument(argument) for argument in schema.arguments[1:]]
    shapes = [list(parameter.shape) for parameter in module.parameters()]
    return Program(module, arguments, "TorchScript", _script_outputs(schema), None, shapes)


def _script_argument(argument: Any) -> Argument:
    kinds = {"List[str]": STRINGS, "Dict[str, Tensor]": DICTIONARY}
    return Argument(
        argument.name, kinds.get(str(argument.type), TENSOR), argument.has_default_value()
    )


def _script_outputs(schema: Any) -> list[str]:
    """Returns `OUTPUT__i` for each element of a tuple, or [] if the number is unknown."""
    returned = schema.returns[0].type
    if str(returned).startswith("Dict"):
        return []
    count = len(returned.elements()) if returned.kind() == "TupleType" else 1
    return [f"OUTPUT__{index}" for index in range(count)]


# torch.export.


def _load_exported(path: str, device: Any) -> Program:
    exported = torch.export.load(path)
    if device is not None and device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        exported = move_to_device_pass(exported, device)
    signature = _exported_signature(exported)
    arguments = [Argument(tensor.name) for tensor in signature.inputs]
    num_positional = len(arguments)
    if exported.call_spec.in_spec is not None:
        num_positional = exported.call_spec.in_spec.children()[0].num_leaves
    arguments = [
        Argument(argument.name, is_keyword=index >= num_positional)
        for index, argument in enumerate(arguments)
    ]
    names = [tensor.name for tensor in signature.outputs]
    return Program(exported.module(), arguments, "a torch.export program", names, signature)


def _exported_signature(exported: Any) -> Signature:
    graph, names = exported.graph, exported.graph_signature
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    inputs = [
        _node_signature(name, placeholders[name])
        for name in names.user_inputs
        if name in placeholders
    ]
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    nodes = {node.name: node for node in returned if hasattr(node, "name")}
    outputs = [name for name in names.user_outputs if name in nodes]
    shown = _tree_names(exported.call_spec.out_spec, len(outputs))
    return Signature(
        inputs,
        [_node_signature(label, nodes[name]) for label, name in zip(shown, outputs, strict=True)],
        max_batch_size=_largest_batch(exported, [placeholders[tensor.name] for tensor in inputs]),
    )


def _largest_batch(exported: Any, inputs: list[Any]) -> int:
    """The upper bound of the first dimension, as `Dim("batch", max=64)` gives it; 0 if there is
    none."""
    bounds: list[int] = []
    for node in inputs:
        shape = node.meta["val"].shape
        if not shape or type(shape[0]) is int:
            continue
        known = exported.range_constraints.get(shape[0].node.expr)
        if known is not None and known.upper.is_Integer and int(known.upper) < 2**31:
            bounds.append(int(known.upper))
    return min(bounds, default=0)


def _node_signature(name: str, node: Any) -> TensorSignature:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise invalid_arg(
            f"'{name}' is of type {type(value).__name__}: only tensors can be inputs and outputs "
            "of a served model"
        )
    shape = [dim if type(dim) is int else -1 for dim in value.shape]
    return TensorSignature(name, DATATYPES.get(value.dtype, ""), shape, str(value.dtype))


def _tree_names(spec: Any, count: int) -> list[str]:
    """Returns the keys if the model returns a dictionary of tensors, otherwise OUTPUT__i."""
    if spec is not None and spec.type is dict and spec.num_leaves == len(spec.context):
        return [str(key) for key in spec.context]
    return [f"OUTPUT__{index}" for index in range(count)]


# AOTInductor.


def _load_aot(path: str, device: Any) -> Program:
    from torch.export.pt2_archive._package import AOTICompiledModel

    device_index = device.index if device is not None and device.type == "cuda" else -1
    # This is aoti_load_package without its check of the CPU, for which it compiles a program.
    package = AOTICompiledModel(
        torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, device_index)
    )
    in_spec, out_spec = (json.loads(text)[1] for text in package.loader.get_call_spec())
    positional, keywords = in_spec["children_spec"]
    arguments = [Argument(f"ARGS[{index}]") for index in range(len(positional["children_spec"]))]
    arguments += [
        Argument(str(name), is_keyword=True) for name in json.loads(keywords["context"] or "[]")
    ]
    return Program(package, arguments, "an AOTInductor package", _aot_outputs(out_spec))


def _aot_outputs(spec: dict[str, Any]) -> list[str]:
    children = spec["children_spec"]
    if spec["type"] == "builtins.dict":
        return [str(key) for key in json.loads(spec["context"])]
    return [f"RESULT[{index}]" for index in range(max(len(children), 1))]


# A Python class, and files written by torch.save.


def _load_class(path: str, shown: str, device: Any) -> Program:
    directory = os.path.dirname(path)
    extend_path([directory, os.path.dirname(directory)])
    module = import_file(os.path.basename(directory), directory, os.path.basename(path))
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, torch.nn.Module)
        and value.__module__ == module.__name__
    ]
    # A file may define layers too. The model is the class named Model, or else the last class,
    # which can use the classes before it.
    model_class = next(
        (value for value in classes if value.__name__ == "Model"), classes[-1] if classes else None
    )
    if model_class is None:
        raise invalid_arg(f"'{shown}': cannot find a subclass of torch.nn.Module")
    model = model_class()
    _load_weights(model, path.removesuffix(".py"), device)
    return _module_program(model, device, "a Python class")


def _load_weights(model: Any, stem: str, device: Any) -> None:
    if os.path.exists(f"{stem}.safetensors"):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(f"{stem}.safetensors"))
    elif os.path.exists(f"{stem}.pt"):
        model.load_state_dict(torch.load(f"{stem}.pt", map_location=device))


def _load_pickle(path: str, shown: str, device: Any, *, is_unsafe: bool) -> Program:
    if not is_unsafe:
        raise pickle_error(
            f"'{shown}' was written by torch.save and is not TorchScript. If it is a state_dict, "
            f'put the class into model.py next to it and set runtime: "{PYTHON_RUNTIME}". If it '
            "is a whole module"
        )
    model = torch.load(path, map_location=device, weights_only=False)
    if not isinstance(model, torch.nn.Module):
        raise invalid_arg(
            f"'{shown}' contains a {type(model).__name__}, expected a module; for a state_dict put "
            f'the class into model.py next to it and set runtime: "{PYTHON_RUNTIME}"'
        )
    return _module_program(model, device, "a pickled module")


def _module_program(model: Any, device: Any, description: str) -> Program:
    if device is not None:
        model.to(device)
    model.eval()
    return Program(
        model,
        _python_arguments(model),
        description,
        layers=[list(parameter.shape) for parameter in model.parameters()],
    )


def _python_arguments(model: Any) -> list[Argument]:
    arguments: list[Argument] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not parameter.empty
        arguments.append(
            Argument(parameter.name, TENSOR, has_default, parameter.kind is parameter.KEYWORD_ONLY)
        )
    return arguments


# torch.compile.


def _compiled(program: Program, config: ServedConfig) -> Program:
    if not (config.flag(COMPILE, False) or config.has(COMPILE_OPTIONS)):
        return program
    if program.description not in ("a Python class", "a pickled module", "a torch.export program"):
        raise invalid_arg(
            f"torch.compile does not apply to model '{config.name}', which is {program.description}"
        )
    try:
        options = json.loads(config.text(COMPILE_OPTIONS) or "{}")
    except ValueError as error:
        raise invalid_arg(
            f"parameter '{COMPILE_OPTIONS}' of model '{config.name}' is not valid JSON: {error}"
        ) from None
    if not isinstance(options, dict):
        raise invalid_arg(
            f"parameter '{COMPILE_OPTIONS}' of model '{config.name}' must be a JSON object"
        )
    if "model" in options:
        raise invalid_arg("'model' is not an optional parameter for 'torch.compile'")
    compiled = torch.compile(program.call, **options)
    return Program(
        compiled,
        program.arguments,
        program.description,
        program.output_names,
        program.signature,
        program.layers,
    )


def _first_lines(error: BaseException, arguments: LoadArguments) -> str:
    root = os.path.dirname(os.path.abspath(arguments.model_dir)) + os.sep
    lines = [line for line in str(error).replace(root, "").splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__
