"""Writes an encoder as ONNX, with pooling and normalisation at its end, so that the model's output
is the embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from naiad.errors import invalid_arg
from naiad.tools.embeddings.encoder import Encoder
from naiad.tools.embeddings.onnx_writer import FLOAT, INT64, Array, OnnxModel, tensor_info


class Network:
    """Collects nodes; every method adds one or a few, and returns the name of the result."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.model = OnnxModel()
        self._num_names = 0

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = self._new_name(operator.lower())
        self.model.add(operator, inputs, name, **attributes)
        return name

    def constant(self, value: Array, name: str = "") -> str:
        name = name or self._new_name("constant")
        self.model.constant(name, value)
        return name

    def _new_name(self, kind: str) -> str:
        self._num_names += 1
        return f"{kind}_{self._num_names}"

    def weight(self, name: str, row: int | None = None, *, is_matrix: bool = False) -> str:
        if name not in self.encoder.weights:
            raise invalid_arg(f"the checkpoint has no tensor '{name}'")
        value = self.encoder.weights[name]
        return self.constant(value.T if is_matrix else value if row is None else value[row], name)

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def dense(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", is_matrix=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        epsilon = self.encoder.epsilon
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)


def _embed(net: Network) -> str:
    words = net.add("Gather", net.weight("embeddings.word_embeddings.weight"), "input_ids")
    first = net.integers(net.encoder.first_position)
    end = net.add("Add", net.add("Shape", "input_ids", start=1, end=2), first)
    table = net.weight("embeddings.position_embeddings.weight")
    places = net.add("Slice", table, first, end, net.integers(0))
    kinds = net.weight("embeddings.token_type_embeddings.weight", row=0)
    return net.norm(net.add("Add", net.add("Add", words, places), kinds), "embeddings.LayerNorm")


def _attention(net: Network, x: str, bias: str, name: str) -> str:
    encoder = net.encoder
    size = encoder.hidden_size // encoder.num_heads
    split = net.integers(0, 0, encoder.num_heads, size)

    def heads(part: str, order: list[int]) -> str:
        dense = net.dense(x, f"{name}.self.{part}")
        return net.add("Transpose", net.add("Reshape", dense, split), perm=order)

    query, key = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
    scores = net.add("Mul", net.add("MatMul", query, key), net.number(size**-0.5))
    shares = net.add("Softmax", net.add("Add", scores, bias), axis=-1)
    values = net.add("MatMul", shares, heads("value", [0, 2, 1, 3]))
    joined = net.add("Transpose", values, perm=[0, 2, 1, 3])
    joined = net.add("Reshape", joined, net.integers(0, 0, encoder.hidden_size))
    return net.norm(
        net.add("Add", net.dense(joined, f"{name}.output.dense"), x), f"{name}.output.LayerNorm"
    )


def _layer(net: Network, x: str, bias: str, index: int) -> str:
    name = f"encoder.layer.{index}"
    x = _attention(net, x, bias, f"{name}.attention")
    inner = net.add("Gelu", net.dense(x, f"{name}.intermediate.dense"))
    return net.norm(
        net.add("Add", net.dense(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm"
    )


def _pool(net: Network, x: str, mask: str) -> str:
    if net.encoder.pooling == "cls":
        pooled = net.add("Gather", x, net.constant(np.array(0, np.int64)), axis=1)
    else:
        column, rows = net.add("Unsqueeze", mask, net.integers(2)), net.integers(1)
        total = net.add("ReduceSum", net.add("Mul", x, column), rows, keepdims=0)
        count = net.add("ReduceSum", column, rows, keepdims=0)
        pooled = net.add("Div", total, net.add("Max", count, net.number(1e-9)))
    return net.add("LpNormalization", pooled, axis=1, p=2) if net.encoder.is_normalized else pooled


def write_network(encoder: Encoder, path: Path) -> None:
    """`input_ids` and `attention_mask` -> `embedding`. Raises NaiadError if a weight is missing."""
    net = Network(encoder)
    mask = net.add("Cast", "attention_mask", to=FLOAT)
    bias = net.add("Mul", net.add("Sub", net.number(1), mask), net.number(-10000))
    bias = net.add("Unsqueeze", bias, net.integers(1, 2))
    x = _embed(net)
    for index in range(encoder.num_layers):
        x = _layer(net, x, bias, index)
    net.model.add("Identity", [_pool(net, x, mask)], "embedding")
    inputs = [tensor_info(n, INT64, ["batch", "length"]) for n in ("input_ids", "attention_mask")]
    size = encoder.hidden_size
    net.model.write(path, inputs, [tensor_info("embedding", FLOAT, ["batch", size])])
