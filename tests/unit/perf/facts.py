"""Descriptions of models for tests."""

from __future__ import annotations

from naiad.perf.data.model_facts import ModelFacts, TensorFacts


def add_sub(max_batch_size: int = 8) -> ModelFacts:
    inputs = tuple(TensorFacts(name, "FP32", (4,)) for name in ("INPUT0", "INPUT1"))
    outputs = tuple(TensorFacts(name, "FP32", (4,)) for name in ("OUTPUT0", "OUTPUT1"))
    return ModelFacts("add_sub", "", inputs, outputs, max_batch_size)


def text_model() -> ModelFacts:
    inputs = (
        TensorFacts("TEXT", "BYTES", (-1,)),
        TensorFacts("COUNT", "INT32", (1,), is_optional=True),
    )
    return ModelFacts("text", "", inputs, (TensorFacts("SAME", "BYTES", (-1,)),))
