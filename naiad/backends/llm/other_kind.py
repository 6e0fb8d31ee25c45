"""Recognises checkpoints that are not language models by config.json and modules.json.

In:  the folder of a checkpoint. Out: nothing, or NaiadError with what it is and the way to serve
     it. Rule: only what is known to be something else is refused; what is unknown is tried.
"""

from __future__ import annotations

import re
from pathlib import Path

from naiad.errors import NaiadError, unsupported
from naiad.files.regular_file import read_json_object

_ENCODERS = re.compile(
    r"(Albert|BGEM3|Bert|Camembert|Deberta|DebertaV2|DistilBert|Electra|Ernie|Gte|ModernBert|MPNet"
    r"|MobileBert|New|NomicBert|Roberta|RoFormer|T5Encoder|XLMRoberta|XLMRobertaXL)(Model|ForMaskedLM)"
)
_HEADS = {
    "SequenceClassification": "classifies texts",
    "TokenClassification": "classifies tokens",
    "QuestionAnswering": "finds answers in a text",
    "MultipleChoice": "chooses among texts",
    "ImageClassification": "classifies images",
    "ObjectDetection": "finds objects in images",
    "SemanticSegmentation": "segments images",
    "AudioClassification": "classifies sounds",
    "CTC": "writes down speech",
    "SpeechSeq2Seq": "writes down speech",
}
_HEAD = re.compile(r"For(\w+)")
_SPEECH = re.compile(r"Whisper\w*|Speech2Text\w*")
_EMBEDDING_WAY = (
    "`naiad init embeddings CHECKPOINT REPOSITORY` writes a repository that serves it at "
    "/v1/embeddings"
)
_OTHER_WAY = "serve it as ONNX, or with a model.py (docs/backends.md)"


def refuse_other_kind(path: Path) -> None:
    """Raises NaiadError."""
    if not path.is_dir():
        return
    found, way = _kind(path)
    if found:
        raise unsupported(f"'{path.name}' {found}, and is not a language model: {way}")


def _kind(path: Path) -> tuple[str, str]:
    """(what it is, the way to serve it); empty texts for what may be a language model."""
    if (path / "model_index.json").is_file():
        return "makes images (model_index.json)", _OTHER_WAY
    if (path / "modules.json").is_file() or (path / "1_Pooling").is_dir():
        return "is an embedding model (modules.json)", _EMBEDDING_WAY
    try:
        names = read_json_object(path / "config.json", path.name).get("architectures")
    except (NaiadError, OSError):
        return "", ""
    for name in names if isinstance(names, list) else ():
        if not isinstance(name, str):
            continue
        if _ENCODERS.fullmatch(name):
            return f"is an embedding model ({name})", _EMBEDDING_WAY
        if _SPEECH.fullmatch(name):
            return f"writes down speech ({name})", _OTHER_WAY
        head = _HEAD.search(name)
        if head is not None and head[1] in _HEADS:
            return f"{_HEADS[head[1]]} ({name})", _OTHER_WAY
    return "", ""
