"""Writes a repository for a language model checkpoint, for `naiad init llm`.

In:  a checkpoint, and a folder that is empty or does not exist.
Out: config.pbtxt and model.py files that are ready to be served and edited. They define one model,
     or TensorRT-LLM's four models and its BLS model.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from naiad.backends.llm.other_kind import refuse_other_kind
from naiad.errors import invalid_arg
from naiad.files.new_folder import new_folder
from naiad.repository.deploy.llm_config import checkpoint_name, llm_config
from naiad.tools.init_llm_config import (
    bls_config,
    ensemble_config,
    parallel_parameter,
    postprocessing_config,
    preprocessing_config,
)
from naiad.tools.init_llm_config import tensorrt_llm_config as engine_config

FORMS = ("one", "four-part")


def init_llm(
    checkpoint: str,
    out: Path,
    *,
    form: str = "one",
    name: str = "",
    is_decoupled: bool = True,
    is_begun: bool = False,
    tensor_parallel_size: int = 1,
) -> list[Path]:
    """Returns the files that were written; `is_begun`: the checkpoint is in the repository already.
    Raises NaiadError."""
    if not is_begun:
        check_empty(out)
    if Path(checkpoint).exists():
        refuse_other_kind(Path(checkpoint).resolve())
        checkpoint = str(Path(checkpoint).resolve())
    files = {f"{name or checkpoint_name(checkpoint)}/config.pbtxt": llm_config(checkpoint)}
    if form == "four-part":
        files = _four_parts(checkpoint, is_decoupled)
    if tensor_parallel_size > 1:
        engine = "tensorrt_llm/config.pbtxt" if form == "four-part" else next(iter(files))
        files[engine] += parallel_parameter(tensor_parallel_size)
    if is_begun:
        _write(out, files)
    else:
        with new_folder(out) as made:
            _write(made, files)
    return [out / path for path in files]


def _write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.name == "config.pbtxt":
            (target.parent / "1").mkdir(exist_ok=True)
        target.write_text(text)


def check_empty(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        raise invalid_arg(f"'{out}' is not empty, expected an empty or a new folder")


def version_folder(checkpoint: str, out: Path, form: str, name: str) -> Path:
    """Where a checkpoint lies that belongs to the repository itself."""
    return (
        out / ("tensorrt_llm" if form == "four-part" else name or checkpoint_name(checkpoint)) / "1"
    )


def _four_parts(checkpoint: str, is_decoupled: bool) -> dict[str, str]:
    if not (Path(checkpoint) / "tokenizer.json").exists():
        raise invalid_arg(
            "--form four-part needs a checkpoint folder with tokenizer.json, got"
            f" '{checkpoint}'. Use --form one for this checkpoint."
        )
    source = resources.files("naiad.tools.llm_repository")
    return {
        "preprocessing/config.pbtxt": preprocessing_config(checkpoint),
        "preprocessing/1/model.py": (source / "preprocessing_model.py").read_text(),
        "tensorrt_llm/config.pbtxt": engine_config(checkpoint, is_decoupled),
        "postprocessing/config.pbtxt": postprocessing_config(checkpoint),
        "postprocessing/1/model.py": (source / "postprocessing_model.py").read_text(),
        "ensemble/config.pbtxt": ensemble_config(),
        "tensorrt_llm_bls/config.pbtxt": bls_config(is_decoupled),
        "tensorrt_llm_bls/1/model.py": (source / "bls_model.py").read_text(),
    }
