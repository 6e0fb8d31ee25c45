"""Backends by name: ours, and those of installed packages. Backends are imported only in templates
and workers; the server knows only their names."""

from __future__ import annotations

import importlib

from naiad.backends.backend import Backend
from naiad.core.install_advice import install_command
from naiad.core.installed_backends import installed_backends

BACKENDS = {
    "identity": "naiad.backends.identity:IdentityBackend",
    "llm": "naiad.backends.llm.backend:LlmBackend",
    "onnxruntime": "naiad.backends.onnx.backend:OnnxBackend",
    "openvino": "naiad.backends.openvino.backend:OpenvinoBackend",
    "python": "naiad.backends.python.backend:PythonBackend",
    "pytorch": "naiad.backends.torch.backend:PytorchBackend",
    "tensorrtllm": "naiad.backends.llm.tensorrtllm.backend:TensorrtllmBackend",
    "torch_aoti": "naiad.backends.torch.exported:PytorchBackend",
    "vllm": "naiad.backends.llm.vllm.backend:VllmBackend",
}
"""The name of a backend -> module:class."""

EXTRAS = {"onnxruntime": "onnx", "openvino": "openvino", "torch": "pytorch"}
"""The name of a package -> the extra of naiad that installs it."""


def find_backend(name: str) -> str | None:
    """Returns module:class of one of our backends, or of a backend in an installed package."""
    return BACKENDS.get(name) or installed_backends().get(name)


def import_backend(name: str) -> type[Backend]:
    target = find_backend(name)
    if target is None:
        raise LookupError(f"no backend '{name}'")
    module, _, attribute = target.partition(":")
    try:
        backend = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed: {install_command(EXTRAS[error.name])}"
        ) from error
    if not isinstance(backend, type):
        raise TypeError(f"backend '{name}': {target} is not a class")
    # A package's backend need not inherit from Backend: it gets the defaults of what it lacks here.
    return (
        backend
        if issubclass(backend, Backend)
        else type(backend.__name__, (backend, Backend), {"__module__": backend.__module__})
    )
