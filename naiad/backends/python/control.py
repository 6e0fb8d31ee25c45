"""Model control from inside a model: load_model, unload_model, is_model_ready.

The server allows loading and unloading only in explicit mode.
"""

from __future__ import annotations

from typing import Any

from naiad.backends.python.error import TritonModelException, signature_error
from naiad.backends.python.instance import current
from naiad.backends.python.wire_text import as_text, wire_text
from naiad.errors import NaiadError
from naiad.ipc.work import ControlOperation


def load_model(model_name: str | bytes, config: str | bytes = "", files: Any = None) -> None:
    """Loads a model and waits until it is loaded.

    `files` is {"file:<path>": contents} and requires `config`.
    """
    model_name, config = as_text(model_name), as_text(config)
    if not isinstance(model_name, str) or not isinstance(config, str):
        raise signature_error(
            "load_model(model_name: str, config: str = '', files: dict = None)",
            model_name,
            config,
            files,
        )
    operation = ControlOperation(
        "load_model",
        wire_text(model_name),
        config=wire_text(config),
        files=_check_files(model_name, files),
    )
    _control(operation, "Failed to load model")


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Returns when unloading has begun."""
    model_name = as_text(model_name)
    if not isinstance(model_name, str) or not isinstance(unload_dependents, bool):
        raise signature_error(
            "unload_model(model_name: str, unload_dependents: bool = False)",
            model_name,
            unload_dependents,
        )
    _control(
        ControlOperation(
            "unload_model", wire_text(model_name), unload_dependents=unload_dependents
        ),
        "Failed to unload model",
    )


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """An empty version means the latest."""
    model_name, model_version = as_text(model_name), as_text(model_version)
    if not isinstance(model_name, str) or not isinstance(model_version, str):
        raise signature_error(
            "is_model_ready(model_name: str, model_version: str = '')", model_name, model_version
        )
    operation = ControlOperation(
        "is_model_ready", wire_text(model_name), model_version=wire_text(model_version)
    )
    return _control(operation, "Failed to check model readiness")


def get_model_dir() -> str:
    """Returns the version directory of the model."""
    return current().version_dir


def _check_files(model_name: str, files: Any) -> dict[str, bytes]:
    if files is None:
        return {}
    if isinstance(files, dict):
        files = {as_text(path): contents for path, contents in files.items()}
    if not isinstance(files, dict) or not all(isinstance(path, str) for path in files):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and "
            "file contents"
        )
    for contents in files.values():
        if not isinstance(contents, bytes):
            raise TypeError(
                f"Object of type '{type(contents).__name__}' is not an instance of 'bytes'"
            )
    return {wire_text(path): contents for path, contents in files.items()}


def _control(operation: ControlOperation, failure: str) -> bool:
    instance = current()
    try:
        return instance.runtime.control(operation)
    except NaiadError as error:
        raise TritonModelException(
            f"{failure}: Failed to process the request for model '{instance.name}', "
            f"message: {error.message}"
        ) from None
