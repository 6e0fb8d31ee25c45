"""Writes a tiny chat model for tests in Hugging Face's layout: random weights, a byte-level
tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'villain' %}{{ raise_exception('no villains') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_checkpoint(
    folder: Path, *, max_positions: int = 512, layers: int = 2, hidden: int = 32
) -> Path:
    import tokenizers
    import torch
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {
        word: index
        for index, word in enumerate(SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[2],
                "chat_template": TEMPLATE,
                "model_max_length": max_positions,
            }
        )
    )
    return folder


def write_model(
    repository: Path, name: str, config: str, files: dict[str, str] | None = None
) -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    for path, text in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
