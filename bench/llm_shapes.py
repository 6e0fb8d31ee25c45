"""Shapes of the models that are measured with random weights, as their config.json has them; the
tiny ones are for trying things out."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "dtype": "bfloat16",
    },
    "llama-3.1-8b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
        "dtype": "bfloat16",
    },
    "qwen3-14b": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6,
        "rms_norm_eps": 1e-6, "dtype": "bfloat16",
    },
    "falcon-7b": {
        "model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "max_position_embeddings": 2048, "dtype": "bfloat16",
    },
    "tiny": {
        "model_type": "llama", "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "dtype": "float32",
    },
    "tiny-falcon": {
        "model_type": "falcon", "vocab_size": 2048, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 2048, "dtype": "float32",
    },
}  # fmt: skip
