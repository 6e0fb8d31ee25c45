"""In which form a GGUF file is converted: which products OpenVINO may make of bytes.

OpenVINO multiplies bytes several times as fast as float32, after it has rounded the inputs of a
matrix to eight bits, in groups that share a scale. By default only the head is multiplied so, and
nothing is lost there, because each row goes in twice: rounded to eight bits, and what the rounding
left, rounded again. With `activations: "int8"` other matrices get rounded inputs, too.
"""

from __future__ import annotations

import msgspec

from naiad.llm.checkpoint.dequantize import SYMMETRIC
from naiad.llm.checkpoint.gguf_config import hugging_face_names
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.models.decoder_config import DecoderConfig

ROUNDED_GROUP = 16
"""With `activations: "int8"`. Larger groups are faster and change more (bench/RESULTS.md)."""
EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class ModelForm(msgspec.Struct, frozen=True):
    rounds_inputs: bool = False
    """The inputs of the matrices of model.ROUNDED are rounded."""
    splits_head: bool = False
    byte_group: int = 0
    """How many neighbouring inputs share a scale when they are rounded to bytes. 0: nothing is."""

    @property
    def name(self) -> str:
        """A part of the name of the folder."""
        head = "-split" if self.splits_head else ""
        return f"{'int8' if self.rounds_inputs else 'float32'}{head}-{self.byte_group}"


def choose_form(
    file: GgufFile, config: DecoderConfig, settings: EngineSettings, multiplies_bytes: bool
) -> ModelForm:
    """`multiplies_bytes`: the processor has instructions for that; without them a head that is
    split costs twice as much and gains nothing."""
    rounds_inputs = settings.activations == "int8"
    group = _head_group(file, config)
    splits_head = settings.use_split_head and multiplies_bytes and group > 0
    if rounds_inputs:
        return ModelForm(True, splits_head, ROUNDED_GROUP)
    return ModelForm(False, splits_head, group if splits_head else 0)


def _head_group(file: GgufFile, config: DecoderConfig) -> int:
    """The size of the groups of the head's integers; 0 where it has none, or has offsets, which
    OpenVINO would have to round."""
    names = hugging_face_names(file, config.num_layers)
    name = EMBEDDINGS if config.tie_embeddings else HEAD
    return SYMMETRIC.get(file.tensors[names[name]].kind, 0) if name in names else 0
