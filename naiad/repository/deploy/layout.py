"""Where the files that somebody hands over belong in a model's folder, and which backend runs them.

In:  the paths of the files, as they were dropped. Out: a Layout: for each file its place in the
     model's folder. Pure.
Rule: a folder that is a model already is not rearranged. Files that no backend runs are refused
      with the way to one that does.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

import msgspec

from naiad.errors import invalid_arg
from naiad.repository.scan import CONFIG_FILE

VERSION = "VERSION"
"""Stands for the version's number in a target."""
_MODEL_FILES = {
    ".onnx": ("onnxruntime", "model.onnx"),
    ".xml": ("openvino", "model.xml"),
    ".pt": ("pytorch", "model.pt"),
    ".pth": ("pytorch", "model.pt"),
    ".ts": ("pytorch", "model.pt"),
    ".torchscript": ("pytorch", "model.pt"),
    ".pt2": ("pytorch", "model.pt2"),
    ".py": ("python", "model.py"),
}
_REFUSED = {
    ".plan": "a TensorRT engine needs TensorRT: hand over the ONNX model that it was built from",
    ".engine": "a TensorRT engine needs TensorRT: hand over the checkpoint that it was built from",
    ".pb": "TensorFlow models are not served: convert it with `python -m tf2onnx.convert`",
    ".h5": "Keras models are not served: save it as ONNX with model.export(..., format='onnx')",
    ".keras": "Keras models are not served: save it as ONNX with model.export(..., format='onnx')",
    ".tflite": "TensorFlow Lite models are not served: convert it with `python -m tf2onnx.convert`",
    ".safetensors": "weights alone do not say what they are: hand over the whole checkpoint folder,"
    " with config.json and the tokenizer",
    ".pkl": "a pickle is not a model file: save the model as ONNX or TorchScript",
    ".pickle": "a pickle is not a model file: save the model as ONNX or TorchScript",
    ".joblib": "a pickle is not a model file: convert it to ONNX with skl2onnx",
}
ACCEPTED = (
    "a .onnx file, a TorchScript file (.pt), a torch.export program (.pt2), an OpenVINO model "
    "(.xml and .bin), a model.py, a .gguf file, a checkpoint folder with config.json, or a whole "
    "model folder"
)
_IN_MODEL_FOLDER = re.compile(r"requirements\.txt|.*labels?.*\.txt|.*classes.*\.txt")
"""Files that a config or the server looks for next to the versions."""
_TOP_FOLDERS = frozenset({"warmup", "initial_state", "configs"})


class Layout(msgspec.Struct, frozen=True):
    backend: str
    """Empty if the model's own config.pbtxt says it."""
    name: str
    """A name for the model, from the name of its file or folder; may be empty."""
    targets: dict[str, str]
    """Path as it was dropped -> path in the model's folder, which may begin with `VERSION/`."""
    has_config: bool = False

    def target(self, path: str, version: int) -> str:
        return re.sub(f"^{VERSION}/", f"{version}/", self.targets[path])

    @property
    def is_checkpoint(self) -> bool:
        return self.backend == "llm"


def plan_layout(paths: Collection[str]) -> Layout:
    """Raises NaiadError for files that are not a model."""
    if not paths:
        raise invalid_arg(f"there are no files; expected {ACCEPTED}")
    top = _common_folder(paths)
    inner = {path: path.removeprefix(f"{top}/") if top else path for path in paths}
    names = set(inner.values())
    if CONFIG_FILE in names or _is_model_folder(names):
        return Layout("", top, inner, has_config=CONFIG_FILE in names)
    if _is_checkpoint(names):
        return Layout(
            "llm",
            top or _stem(next(iter(sorted(names, key=_gguf_first)))),
            {path: f"{VERSION}/{name}" for path, name in inner.items()},
        )
    return _plan_files(inner, top)


def _plan_files(inner: dict[str, str], top: str) -> Layout:
    main, (backend, file_name) = _main_file(inner.values())
    stem = PurePosixPath(main).stem
    targets: dict[str, str] = {}
    for path, name in inner.items():
        if name == main:
            targets[path] = f"{VERSION}/{file_name}"
        elif backend == "openvino" and name == str(PurePosixPath(main).with_suffix(".bin")):
            targets[path] = f"{VERSION}/model.bin"
        elif _belongs_next_to_versions(name):
            targets[path] = name
        else:
            targets[path] = f"{VERSION}/{name}"
    return Layout(backend, top or ("" if stem == "model" else stem), targets)


def _belongs_next_to_versions(name: str) -> bool:
    top, _, rest = name.partition("/")
    return top in _TOP_FOLDERS if rest else _IN_MODEL_FOLDER.fullmatch(name) is not None


def _main_file(names: Collection[str]) -> tuple[str, tuple[str, str]]:
    """The file that is the model, with its backend and the name that the backend expects."""
    models = sorted(
        (name for name in names if "/" not in name and _suffix(name) in _MODEL_FILES),
        key=lambda name: (_suffix(name) == ".py", PurePosixPath(name).stem != "model", name),
    )
    if not models:
        raise _no_model(names)
    first = models[0]
    same = [name for name in models if _suffix(name) == _suffix(first)]
    if len(same) > 1 and PurePosixPath(first).stem != "model":
        raise invalid_arg(
            f"{', '.join(same)} could each be the model; hand over one of them, or call one "
            f"model{_suffix(first)}"
        )
    return first, _MODEL_FILES[_suffix(first)]


def _no_model(names: Collection[str]) -> Exception:
    for name in sorted(names):
        reason = _REFUSED.get(_suffix(name))
        if reason:
            return invalid_arg(f"{name}: {reason}")
    shown = ", ".join(sorted(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return invalid_arg(f"none of the files is a model ({shown}{more}); expected {ACCEPTED}")


def _is_model_folder(names: Collection[str]) -> bool:
    """Whether there are version folders with something in them, and no model file outside."""
    versions = {name.partition("/")[0] for name in names if "/" in name}
    return any(version.isdigit() for version in versions) and not any(
        "/" not in name and _suffix(name) in _MODEL_FILES for name in names
    )


def _is_checkpoint(names: Collection[str]) -> bool:
    top = {name for name in names if "/" not in name}
    if any(_suffix(name) == ".gguf" for name in top):
        return True
    if "config.json" not in top:
        return False
    return any(
        _suffix(name) == ".safetensors"
        or name == "openvino_model.xml"
        or (name.startswith("pytorch_model") and name.endswith(".bin"))
        for name in top
    )


def _common_folder(paths: Collection[str]) -> str:
    tops = {path.partition("/")[0] if "/" in path else "" for path in paths}
    top = tops.pop() if len(tops) == 1 else ""
    return "" if top.isdigit() else top


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _gguf_first(name: str) -> tuple[bool, str]:
    return (_suffix(name) != ".gguf", name)


def _stem(name: str) -> str:
    return "" if _suffix(name) != ".gguf" else PurePosixPath(name).stem
