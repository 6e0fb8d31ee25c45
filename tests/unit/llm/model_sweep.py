"""A tiny random checkpoint of every causal architecture that the installed transformers has: does
the native engine give the tokens that transformers gives, or refuse?

    python -m tests.unit.llm.model_sweep [model_type ...]

Each type runs in a process of its own. The table has one line per type: `right`, `refused` with the
reason, `wrong`, `crashed`, or `not built` where no small config could be made.
"""

from __future__ import annotations

import inspect
import multiprocessing
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from naiad.errors import NaiadError
from tests.unit.llm.engines import request, run, small_engine

VOCAB, NUM_PROMPTS, MAX_TOKENS, LIMIT_S = 211, 6, 10, 240
WINDOW = 16
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256,
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "word_embed_proj_dim": 64,
    "embedding_size": 64, "emb_dim": 64,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "decoder_layers": 4,
    "encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "decoder_attention_heads": 4, "encoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16,
    "swa_v_head_dim": 16,
    "v_head_dim": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "qk_head_dim": 24,
    "kv_lora_rank": 32, "q_lora_rank": 32, "index_topk": 8, "index_n_heads": 2,
    "index_head_dim": 16,
    "intermediate_size": 96, "ffn_hidden_size": 96, "n_inner": 96, "ffn_dim": 96,
    "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "intermediate_size_mlp": 96,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "moe_ffn_hidden_size": 32, "shared_intermediate_size": 32,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_k": 2, "moe_topk": 2,
    "top_k_experts": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "zero_expert_num": 2,
    "first_k_dense_replace": 1, "sliding_window": WINDOW, "attention_chunk_size": WINDOW,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB,
    "num_kv_shared_layers": 0, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8, "state_size": 8,
    "n_groups": 1, "mamba_n_groups": 1, "mamba_d_ssm": 128, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "num_nextn_predict_layers": 0,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "dropout": 0.0, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "initializer_range": 0.05, "is_decoder": True,
    "use_sliding_window": True, "max_window_layers": 2, "pretraining_tp": 1, "rotary_dim": 8,
}  # fmt: skip
"""Values for every config that has a field of the name."""
SPECIAL: dict[str, dict[str, Any]] = {
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "phimoe": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "opt": {"activation_function": "relu"},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, 16]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2, "n_groups": 1},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "gemma4_text": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
}
KINDS = ("layer_types", "mlp_layer_types", "layers_block_type")


class NotBuiltError(Exception):
    pass


def small_config(model_type: str) -> Any:
    """Raises NotBuiltError."""
    kind = CONFIG_MAPPING[model_type]
    try:
        return kind(**_small_values(kind) | SPECIAL.get(model_type, {}))
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error


def _small_values(kind: Any) -> dict[str, Any]:
    default = kind()
    known = default.to_dict()
    names = set(inspect.signature(kind.__init__).parameters) | set(known)
    aliases = getattr(kind, "attribute_map", {})
    values = {
        name: value
        for name, value in SMALL.items()
        if name in names and not (aliases.get(name) in names and aliases.get(name) in SMALL)
    }
    for name in ("sliding_window", "attention_chunk_size"):
        if name in values and known.get(name) is None and not known.get("use_sliding_window"):
            values.pop(name)
            if name == "sliding_window" and "use_sliding_window" in names:
                values[name] = WINDOW
    if "head_dim" in values and ("head_dim" not in known or "qk_rope_head_dim" in known):
        values.pop("head_dim")
    if "kv_lora_rank" in values:  # latent attention has no groups
        values["num_key_value_heads"] = SMALL["num_attention_heads"]
    if "num_attention_heads" in aliases.values() and "n_head" in values:
        values.pop("num_attention_heads", None)
    for name in KINDS:
        if isinstance(known.get(name), list):
            values[name] = _few(known[name], SMALL["num_hidden_layers"])
    for name, value in known.items():
        # An inner config is made small as well.
        inner = getattr(default, name, None) if isinstance(value, dict) else None
        if isinstance(inner, transformers.PreTrainedConfig):
            values[name] = _small_values(type(inner))
        elif (
            isinstance(value, list)
            and name not in KINDS
            and len(value) == known.get("num_hidden_layers")
        ):
            values[name] = _few(value, SMALL["num_hidden_layers"])
    return values


def _few(kinds: list[Any], count: int) -> list[Any]:
    """At least one of each kind, in order."""
    seen = list(dict.fromkeys(map(str, kinds)))
    if len(seen) == 1:
        return kinds[:count]
    first = {str(one): one for one in reversed(kinds)}
    picked = [first[name] for name in seen]
    return [picked[at % len(picked)] for at in range(count)]


def build(model_type: str, folder: Path) -> Any:
    """A checkpoint with weights large enough that every part counts. Raises NotBuiltError."""
    config = small_config(model_type)
    torch.manual_seed(17)
    try:
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        ).eval()
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error
    for name, parameter in model.named_parameters():
        if "sink" in name:
            parameter.data.normal_(0.0, 1.0)
        elif parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.2)
        elif name.endswith("weight"):
            offset = 0.0 if "gemma" in config.model_type else 1.0
            parameter.data.uniform_(-0.3, 0.3).add_(offset)
        else:
            parameter.data.uniform_(-0.3, 0.3)
    model.save_pretrained(folder)
    return model


def prompts_of(model_type: str) -> list[list[int]]:
    source = Random(model_type)
    shared = [source.randrange(5, VOCAB) for _ in range(9)]
    return [
        shared + [source.randrange(5, VOCAB) for _ in range(source.randint(1, 3 * WINDOW))]
        for _ in range(NUM_PROMPTS)
    ]


@torch.inference_mode()
def shortfall(model: Any, prompt: list[int], output: list[int]) -> float:
    """How far the worst token is below transformers' best, in units of the logits' spread."""
    logits = model(input_ids=torch.tensor([prompt + output]), use_cache=False).logits[0]
    rows = logits[len(prompt) - 1 : -1].float()
    chosen = rows.gather(1, torch.tensor(output)[:, None])[:, 0]
    return float(((rows.max(dim=-1).values - chosen) / rows.std(dim=-1)).max())


def verdict(model_type: str, folder: Path) -> tuple[str, str]:
    try:
        model = build(model_type, folder)
    except NotBuiltError as error:
        return "not built", str(error)
    prompts = prompts_of(model_type)
    try:
        shortfall(model, prompts[0], prompts[1][:3])
    except Exception as error:
        return "not built", f"transformers itself fails: {type(error).__name__}: {error}"
    try:
        engine = small_engine(folder)
    except NaiadError as error:
        return "refused", error.message
    completions = run(
        engine,
        [
            request(str(at), prompt, max_tokens=MAX_TOKENS, ignore_eos=True)
            for at, prompt in enumerate(prompts)
        ],
    )
    outputs = [completions[(str(at), 0)] for at in range(len(prompts))]
    for one in outputs:
        if one.error is not None:
            return "crashed", one.error.message
    worst = max(
        shortfall(model, prompt, one.tokens) for prompt, one in zip(prompts, outputs, strict=True)
    )
    told = f"{engine.code or 'own code'}, worst token {worst:.4f} below the best"
    return ("right" if worst < 1e-3 else "wrong"), told


def _child(model_type: str, sender: Any) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            sender.send(verdict(model_type, Path(folder)))
        except BaseException as error:
            sender.send(("crashed", f"{type(error).__name__}: {error}"))


def sweep_one(model_type: str) -> tuple[str, str]:
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(model_type, sender), daemon=True
    )
    process.start()
    sender.close()
    try:
        if not receiver.poll(LIMIT_S):
            return "crashed", f"it took more than {LIMIT_S} s"
        found: tuple[str, str] = receiver.recv()
        return found
    except EOFError:
        return "crashed", "its process ended"
    finally:
        process.kill()
        process.join()


def main(types: list[str]) -> int:
    counts: Counter[str] = Counter()
    for model_type in types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        result, reason = sweep_one(model_type)
        counts[result] += 1
        print(f"{model_type:28} {result:10} {' '.join(reason.split())[:160]}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    return 1 if counts["wrong"] or counts["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
