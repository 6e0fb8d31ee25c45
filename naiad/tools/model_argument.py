"""Makes a temporary repository for `naiad serve --model CHECKPOINT`, or for a model's file.

The repository exists while the server runs. A file is linked into it together with the files next
to it that begin with the same name: weights are often in a second file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from google.protobuf import text_format

from naiad.backends.llm.other_kind import refuse_other_kind
from naiad.errors import invalid_arg
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.deploy.llm_config import checkpoint_name, llm_config

MODEL_FILES = {
    ".onnx": "onnxruntime",
    ".xml": "openvino",
    ".pt2": "pytorch",
    ".py": "python",
}
"""Files that say themselves what their inputs and outputs are, and their backends."""


@contextmanager
def checkpoint_repository(checkpoints: Sequence[str]) -> Iterator[Path]:
    """Yields a repository with one model per checkpoint.

    A model is called after its checkpoint unless the text is `NAME=CHECKPOINT`. Raises NaiadError
    if two models have the same name.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-model-") as folder:
        for text in checkpoints:
            name, has_name, checkpoint = text.partition("=")
            if not has_name:
                name, checkpoint = checkpoint_name(text), text
            path = Path(checkpoint)
            backend = MODEL_FILES.get(path.suffix) if path.is_file() else None
            if backend is not None and not has_name:
                name = checkpoint_name(path.stem)
            target = Path(folder) / name
            if target.exists():
                raise invalid_arg(
                    f"two --model options name the model '{name}'. Use --model NAME=CHECKPOINT to"
                    " name one of them differently."
                )
            (target / "1").mkdir(parents=True)
            if backend is not None:
                _link_files(path.resolve(), target, backend)
                continue
            _refuse_other_files(path)
            if path.exists():
                refuse_other_kind(path.resolve())
                checkpoint = str(path.resolve())
            (target / "config.pbtxt").write_text(llm_config(checkpoint))
        yield Path(folder)


def _link_files(path: Path, target: Path, backend: str) -> None:
    for file in path.parent.iterdir():
        if file.is_file() and file.name.startswith(path.stem):
            (target / "1" / file.name).symlink_to(file)
    config = ModelConfig(backend=backend, default_model_filename=path.name)
    (target / "config.pbtxt").write_text(text_format.MessageToString(config))


def _refuse_other_files(path: Path) -> None:
    if path.is_file() and path.suffix != ".gguf":
        raise invalid_arg(
            f"--model {path}: expected a checkpoint (a folder, a .gguf file, a name for `naiad "
            f"pull` or the id of a hub repository) or a model's file ({', '.join(MODEL_FILES)})"
        )
