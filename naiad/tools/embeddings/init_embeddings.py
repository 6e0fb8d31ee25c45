"""Writes a repository that serves an embedding model, for `naiad init embeddings`.

In:  a checkpoint folder of an encoder. Out: an ensemble of a tokenizer and of the encoder as ONNX,
     which are ready to be served and edited.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from naiad.files.new_folder import new_folder
from naiad.files.regular_file import require_regular
from naiad.tools.embeddings.encoder import read_encoder
from naiad.tools.embeddings.network import write_network
from naiad.tools.init_llm import check_empty

MAX_BATCH_SIZE = 32
_ENCODER = """\
# Inputs and outputs are told by model.onnx. One instance: it uses every core by itself.
backend: "onnxruntime"
max_batch_size: {batch}
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_TOKENIZER = """\
backend: "python"
max_batch_size: {batch}
input [ {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{ name: "INPUT_IDS" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "MASK" data_type: TYPE_INT64 dims: [ -1 ] }}
]
dynamic_batching {{ }}
"""
_ENSEMBLE = """\
# Text in, {size} numbers out.
platform: "ensemble"
max_batch_size: {batch}
input [ {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "EMBEDDING" data_type: TYPE_FP32 dims: [ {size} ] }} ]
ensemble_scheduling {{
  step [
    {{
      model_name: "{name}_tokenizer"
      model_version: -1
      input_map {{ key: "TEXT" value: "TEXT" }}
      output_map {{ key: "INPUT_IDS" value: "ids" }}
      output_map {{ key: "MASK" value: "mask" }}
    }},
    {{
      model_name: "{name}_encoder"
      model_version: -1
      input_map {{ key: "input_ids" value: "ids" }}
      input_map {{ key: "attention_mask" value: "mask" }}
      output_map {{ key: "embedding" value: "EMBEDDING" }}
    }}
  ]
}}
"""


def init_embeddings(checkpoint: Path, out: Path, name: str) -> list[Path]:
    """Returns the files that were written. Raises NaiadError."""
    check_empty(out)
    require_regular(checkpoint / "tokenizer.json", f"checkpoint '{checkpoint.name}'")
    encoder = read_encoder(checkpoint)
    values = {"name": name, "batch": MAX_BATCH_SIZE, "size": encoder.hidden_size}
    source = resources.files("naiad.tools.embeddings") / "tokenizer_model.py"
    code = source.read_text().replace("MAX_TOKENS = 256", f"MAX_TOKENS = {encoder.max_tokens}")
    texts = {
        f"{name}/config.pbtxt": _ENSEMBLE.format(**values),
        f"{name}_encoder/config.pbtxt": _ENCODER.format(**values),
        f"{name}_tokenizer/config.pbtxt": _TOKENIZER.format(**values),
        f"{name}_tokenizer/1/model.py": code,
    }
    network, tokenizer = f"{name}_encoder/1/model.onnx", f"{name}_tokenizer/1/tokenizer.json"
    with new_folder(out) as made:
        for part in ("", "_encoder", "_tokenizer"):
            (made / f"{name}{part}" / "1").mkdir(parents=True)
        for path, text in texts.items():
            (made / path).write_text(text)
        shutil.copyfile(checkpoint / "tokenizer.json", made / tokenizer)
        write_network(encoder, made / network)
    return [out / path for path in (*texts, tokenizer, network)]
