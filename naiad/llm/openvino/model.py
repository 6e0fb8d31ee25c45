"""A GGUF file -> an OpenVINO model of the same decoder, stateful, as ContinuousBatchingPipeline
wants it.

In:  a GgufFile and its DecoderConfig (llama, qwen2, qwen3). Out: openvino.Model, to be saved and
     compiled.
Rule: the matrices keep what the file has: a quantized one its integers, and for each group a scale
      and a zero point in float32. OpenVINO's own reader of GGUF rounds the zero points of Q4_1 and
      Q4_K to whole numbers, which moves groups by up to half a step and makes a small model talk
      nonsense; it is not used.

A zero point in float32 also keeps OpenVINO from rounding the inputs of a matrix to eight bits. A
form (form.py) may allow it: with `rounds_inputs` the matrices of ROUNDED get whole zero points, and
integers that are multiples of the file's: of Q4_1, the zero points then move by 0.004 of a step.
With `splits_head` the head has no zero points, and each of its input rows comes as two.

The shapes of the subgraphs matter: OpenVINO knows the norm, the rotation, the compressed matrix and
the attention with its past by their patterns, and replaces each by one kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino.op
from numpy.typing import NDArray
from openvino import opset13 as ops

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.dequantize import Groups, dequantize, is_quantized, read_groups
from naiad.llm.checkpoint.gguf_config import hugging_face_names, stored_rows
from naiad.llm.checkpoint.gguf_file import GgufFile, GgufTensor
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.rope import rope_frequencies
from naiad.llm.openvino.form import EMBEDDINGS, HEAD, ModelForm

LAST = np.int64((1 << 63) - 1)
ROUNDED = ("o_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
"""Queries, keys, values and the head are more sensitive for their size (bench/RESULTS.md)."""
SAMPLED = "sampled_tokens_indices"
TINY = 1e-30
"""Keeps a group of zeros from a division by zero."""
MAX_ZERO_POINT_ERROR = 0.02
"""In steps, the mean over a matrix."""
Node = Any
"""openvino.Node, or one of its outputs."""


def build_model(file: GgufFile, config: DecoderConfig, form: ModelForm) -> openvino.Model:
    """Raises NaiadError when a tensor is missing or has the wrong shape."""
    return _Builder(_Weights(file, config, form.rounds_inputs), config, form).build()


class ZeroPoints(NamedTuple):
    """value = scale * (integer - zero point). `integers` is [groups, size], of bytes without sign;
    the others are [groups, 1]. Of a matrix: [rows, groups, size] and [rows, groups, 1]."""

    integers: NDArray[Any]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.float32] | NDArray[np.uint8]


class _Weights:
    """The file's tensors as constants, under Hugging Face's names."""

    def __init__(self, file: GgufFile, config: DecoderConfig, rounds_inputs: bool) -> None:
        self._file = file
        self._config = config
        self._rounds_inputs = rounds_inputs
        self._names = hugging_face_names(file, config.num_layers)

    def has(self, name: str) -> bool:
        return name in self._names

    def matrix(self, name: str, rows: int, columns: int) -> Node:
        entry = self._entry(name, (rows, columns))
        if not is_quantized(entry.kind):
            return self._plain_matrix(entry, stored_rows(self._config, name))
        return _zero_point_matrix(self._points(name, rows, columns))

    def joined_matrix(self, sizes: dict[str, int], columns: int) -> Node | None:
        """One matrix with the rows of several, whose numbers of rows are in `sizes` by their names.
        Returns None where their types differ."""
        kinds = {self._entry(name, (rows, columns)).kind for name, rows in sizes.items()}
        if len(kinds) > 1 or not is_quantized(kinds.pop()):
            return None
        parts = [self._points(name, rows, columns) for name, rows in sizes.items()]
        return _zero_point_matrix(ZeroPoints(*map(np.concatenate, zip(*parts, strict=True))))

    def symmetric_matrix(self, name: str, rows: int, columns: int) -> Node:
        """The file's own integers and scales. The tensor has a type without offsets, so there are
        no zero points."""
        entry = self._entry(name, (rows, columns))
        groups = read_groups(entry.kind, self._file.raw(entry), entry.shape)
        values = ops.convert(
            ops.constant(np.ascontiguousarray(_by_rows(groups.integers, rows))), np.float32
        )
        return _scaled(values, _by_rows(groups.scales, rows))

    def _points(self, name: str, rows: int, columns: int) -> ZeroPoints:
        entry = self._entry(name, (rows, columns))
        order = stored_rows(self._config, name)
        points = with_zero_points(read_groups(entry.kind, self._file.raw(entry), entry.shape))
        if self._rounds_inputs and name.endswith(ROUNDED):
            points = with_whole_zero_points(points) or points
        return ZeroPoints(*(_in_order(_by_rows(part, rows), order) for part in points))

    def _plain_matrix(self, entry: GgufTensor, order: NDArray[np.intp] | None) -> Node:
        values = _in_order(dequantize(entry.kind, self._file.raw(entry), entry.shape), order)
        types = {"F16": openvino.Type.f16, "BF16": openvino.Type.bf16}
        if entry.kind not in types:
            return ops.constant(values)
        return ops.convert(ops.constant(values, types[entry.kind]), np.float32)

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        entry = self._entry(name, (size,))
        values = dequantize(entry.kind, self._file.raw(entry), entry.shape)
        order = stored_rows(self._config, name) if name.endswith(".bias") else None
        return _in_order(values, order)

    def _entry(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        if name not in self._names:
            raise invalid_arg(f"the checkpoint has no tensor '{name}'")
        entry = self._file.tensors[self._names[name]]
        if entry.shape != shape:
            raise invalid_arg(
                f"tensor '{self._names[name]}' has shape {list(entry.shape)}, expected "
                f"{list(shape)}"
            )
        return entry


class _Builder:
    def __init__(self, weights: _Weights, config: DecoderConfig, form: ModelForm) -> None:
        self._weights = weights
        self._config = config
        self._form = form
        self._inputs = {
            "input_ids": ops.parameter([-1, -1], np.int64, name="input_ids"),
            "attention_mask": ops.parameter([-1, -1], np.int64, name="attention_mask"),
            "position_ids": ops.parameter([-1, -1], np.int64, name="position_ids"),
            "beam_idx": ops.parameter([-1], np.int32, name="beam_idx"),
        }
        if form.splits_head:
            # The rows that need logits. OpenVINO GenAI sets it where a model has it, and adds it
            # to the models whose head it knows, which is a product at the end.
            self._inputs[SAMPLED] = ops.parameter([-1], np.int64, name=SAMPLED)
        for name, parameter in self._inputs.items():
            parameter.output(0).set_names({name})
        self._batch = ops.gather(ops.shape_of(self._inputs["input_ids"]), _integers(0), _integer(0))
        self._mask = self._causal_mask()
        self._cos, self._sin = self._rotation()
        self._sinks: list[Node] = []

    def build(self) -> openvino.Model:
        config = self._config
        table = self._table(EMBEDDINGS, is_head=config.tie_embeddings)
        stream = ops.gather(table, ops.convert(self._inputs["input_ids"], np.int32), _integer(0))
        for layer in range(config.num_layers):
            stream = self._layer(stream, f"model.layers.{layer}.", layer)
        if self._form.splits_head:
            # After OpenVINO's rewriting for paged attention the first axis is that of all tokens.
            stream = ops.gather(stream, self._inputs[SAMPLED], _integer(0))
        normed = self._norm(stream, "model.norm", config.hidden_size)
        head = table if config.tie_embeddings else self._table(HEAD, is_head=True)
        logits = ops.result(self._head(normed, head), name="logits")
        logits.output(0).set_names({"logits"})
        return openvino.Model([logits], self._sinks, list(self._inputs.values()), "naiad")

    def _table(self, name: str, *, is_head: bool) -> Node:
        config, weights = self._config, self._weights
        if is_head and self._form.splits_head:
            return weights.symmetric_matrix(name, config.vocab_size, config.hidden_size)
        return weights.matrix(name, config.vocab_size, config.hidden_size)

    def _head(self, x: Node, matrix: Node) -> Node:
        if not self._form.splits_head:
            return ops.matmul(x, matrix, False, True)
        halves = ops.split(ops.matmul(self._split(x), matrix, False, True), _integer(0), 2)
        return ops.add(halves.output(0), halves.output(1))

    def _split(self, x: Node) -> Node:
        """Each row as two whose sum it is: what eight bits hold of it, and the rest. OpenVINO
        rounds both to eight bits, by the largest value of a group: the first one loses nothing, and
        the second one 1/254 of what is left."""
        size, group = self._config.hidden_size, self._form.byte_group
        groups = ops.reshape(x, _integers(0, 0, size // group, group), special_zero=True)
        largest = ops.reduce_max(ops.abs(groups), _order(-1), keep_dims=True)
        step = ops.add(
            ops.multiply(largest, ops.constant(np.float32(1 / 127))),
            ops.constant(np.float32(TINY)),
        )
        upper = ops.multiply(ops.round(ops.divide(groups, step), "half_to_even"), step)
        both = ops.concat([upper, ops.subtract(groups, upper)], 0)
        return ops.reshape(both, _integers(0, 0, size), special_zero=True)

    def _layer(self, stream: Node, prefix: str, index: int) -> Node:
        config = self._config
        normed = self._norm(stream, f"{prefix}input_layernorm", config.hidden_size)
        queries, keys, values = self._attention_inputs(normed, f"{prefix}self_attn.")
        query = self._heads(queries, f"{prefix}self_attn.q_norm", config.num_heads)
        key = self._heads(keys, f"{prefix}self_attn.k_norm", config.num_kv_heads)
        value = self._heads(values, "", config.num_kv_heads)
        all_keys = self._with_past(
            f"past_key_values.{index}.keypresent.{index}.key", self._rotate(key)
        )
        all_values = self._with_past(f"past_key_values.{index}.valuepresent.{index}.value", value)
        scale = ops.constant(np.float32(config.attention_scale))
        attended = ops.scaled_dot_product_attention(
            self._rotate(query),
            self._for_all_heads(all_keys),
            self._for_all_heads(all_values),
            self._mask,
            scale,
        )
        joined = ops.reshape(
            ops.transpose(attended, _order(0, 2, 1, 3)),
            _integers(0, 0, config.q_size),
            special_zero=True,
        )
        stream = ops.add(
            stream,
            self._linear(joined, f"{prefix}self_attn.o_proj", config.hidden_size, config.q_size),
        )
        normed = self._norm(stream, f"{prefix}post_attention_layernorm", config.hidden_size)
        gate = self._linear(
            normed, f"{prefix}mlp.gate_proj", config.intermediate_size, config.hidden_size
        )
        up = self._linear(
            normed, f"{prefix}mlp.up_proj", config.intermediate_size, config.hidden_size
        )
        inner = ops.multiply(ops.swish(gate), up)
        return ops.add(
            stream,
            self._linear(
                inner, f"{prefix}mlp.down_proj", config.hidden_size, config.intermediate_size
            ),
        )

    def _attention_inputs(self, x: Node, prefix: str) -> list[Node]:
        """Queries, keys and values, [batch, tokens, size]. They are one product where their
        matrices have one type: one product takes less time than three small ones."""
        config, weights = self._config, self._weights
        kv_size = config.num_kv_heads * config.head_dim
        sizes = {
            f"{prefix}q_proj": config.q_size,
            f"{prefix}k_proj": kv_size,
            f"{prefix}v_proj": kv_size,
        }
        matrix = weights.joined_matrix(
            {f"{name}.weight": size for name, size in sizes.items()}, config.hidden_size
        )
        num_biased = sum(weights.has(f"{name}.bias") for name in sizes)
        if matrix is None or 0 < num_biased < len(sizes):
            return [self._linear(x, name, size, config.hidden_size) for name, size in sizes.items()]
        product = ops.matmul(x, matrix, False, True)
        if num_biased:
            biases = [weights.vector(f"{name}.bias", size) for name, size in sizes.items()]
            product = _plus(product, np.concatenate(biases))
        parts = ops.variadic_split(product, _integer(-1), _integers(*sizes.values()))
        return [parts.output(index) for index in range(len(sizes))]

    def _linear(self, x: Node, name: str, rows: int, columns: int) -> Node:
        product = ops.matmul(x, self._weights.matrix(f"{name}.weight", rows, columns), False, True)
        if not self._weights.has(f"{name}.bias"):
            return product
        return _plus(product, self._weights.vector(f"{name}.bias", rows))

    def _norm(self, x: Node, name: str, size: int) -> Node:
        squares = ops.reduce_mean(
            ops.power(x, ops.constant(np.float32(2))), _order(-1), keep_dims=True
        )
        root = ops.sqrt(ops.add(squares, ops.constant(np.float32(self._config.norm_eps))))
        scaled = ops.multiply(ops.divide(ops.constant(np.float32(1)), root), x)
        return ops.multiply(scaled, ops.constant(self._weights.vector(f"{name}.weight", size)))

    def _heads(self, rows: Node, norm: str, num_heads: int) -> Node:
        """[batch, heads, tokens, head_dim], normalized where the family does that."""
        config = self._config
        heads = ops.reshape(rows, _integers(0, 0, num_heads, config.head_dim), special_zero=True)
        if norm and config.qk_norm is not None:
            heads = self._norm(heads, norm, config.head_dim)
        return ops.transpose(heads, _order(0, 2, 1, 3))

    def _rotation(self) -> tuple[Node, Node]:
        """Cosines and sines of the positions, [batch, 1, tokens, head_dim]."""
        config = self._config
        frequencies, scale = rope_frequencies(config.rope, config.max_position_embeddings)
        positions = ops.convert(
            ops.unsqueeze(self._inputs["position_ids"], _integer(1)), np.float32
        )
        shape = ops.concat([self._batch, _integers(1), _integers(1)], 0)
        spread = ops.broadcast(
            ops.constant(frequencies.reshape(1, -1, 1)), shape, broadcast_spec="BIDIRECTIONAL"
        )
        angles = ops.transpose(ops.matmul(spread, positions, False, False), _order(0, 2, 1))
        both = ops.concat([angles, angles], -1)
        cos, sin = ops.cos(both), ops.sin(both)
        if scale != 1.0:
            cos, sin = (
                ops.multiply(table, ops.constant(np.float32(scale))) for table in (cos, sin)
            )
        return ops.unsqueeze(cos, _integer(1)), ops.unsqueeze(sin, _integer(1))

    def _rotate(self, x: Node) -> Node:
        half = self._config.head_dim // 2
        second = ops.slice(x, _integers(half), _integers(LAST), _integers(1), _integers(3))
        first = ops.slice(x, _integers(0), _integers(half), _integers(1), _integers(3))
        crossed = ops.concat(
            [ops.multiply(second, ops.constant(np.full((1, 1, 1, 1), -1, np.float32))), first], -1
        )
        return ops.add(ops.multiply(x, self._cos), ops.multiply(crossed, self._sin))

    def _with_past(self, name: str, current: Node) -> Node:
        config = self._config
        info = openvino.op.util.VariableInfo()
        info.data_shape = openvino.PartialShape([-1, config.num_kv_heads, -1, config.head_dim])
        info.data_type = openvino.Type.f32
        info.variable_id = name
        variable = openvino.op.util.Variable(info)
        shape = ops.concat(
            [self._batch, _integers(config.num_kv_heads), _integers(0), _integers(config.head_dim)],
            0,
        )
        stored = openvino.op.read_value(ops.broadcast(ops.constant(np.float32(0)), shape), variable)
        whole = ops.concat([ops.gather(stored, self._inputs["beam_idx"], _integer(0)), current], 2)
        self._sinks.append(openvino.op.assign(whole, variable))
        return whole

    def _for_all_heads(self, x: Node) -> Node:
        config = self._config
        if config.group_size == 1:
            return x
        sizes = [
            _integers(size) for size in (config.num_kv_heads, config.group_size, 0, config.head_dim)
        ]
        shape = ops.concat([self._batch, *sizes], 0)
        copies = ops.broadcast(ops.unsqueeze(x, _integer(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(
            copies, _integers(0, config.num_heads, -1, config.head_dim), special_zero=True
        )

    def _causal_mask(self) -> Node:
        """[batch, 1, tokens, all tokens]: true where a key is no later than the query."""
        length = ops.gather(ops.shape_of(self._inputs["attention_mask"]), _integer(1), _integer(0))
        keys = ops.unsqueeze(ops.range(_integer(0), length, _integer(1), "i64"), _integers(0, 1, 2))
        return ops.less_equal(keys, ops.unsqueeze(self._inputs["position_ids"], _integers(1, 3)))


def _zero_point_matrix(points: ZeroPoints) -> Node:
    values = ops.subtract(
        ops.convert(_integer_constant(points.integers), np.float32),
        _as_float32(points.zero_points),
    )
    return _scaled(values, points.scales)


def _scaled(values: Node, scales: NDArray[np.float32]) -> Node:
    """[rows, groups, size] -> [rows, columns]."""
    rows, num_groups, size = values.output(0).get_shape()
    return ops.reshape(
        ops.multiply(values, ops.constant(np.ascontiguousarray(scales))),
        _integers(rows, num_groups * size),
        special_zero=False,
    )


def _plus(product: Node, bias: NDArray[np.float32]) -> Node:
    return ops.add(product, ops.constant(bias.reshape(1, 1, -1)))


def _by_rows(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """[groups, n] -> [rows, groups of a row, n]."""
    return values.reshape(rows, -1, values.shape[1])


def _in_order(values: NDArray[Any], order: NDArray[np.intp] | None) -> NDArray[Any]:
    return values if order is None else values[order]


def with_zero_points(groups: Groups) -> ZeroPoints:
    groups = _without_flat_groups(groups)
    if groups.offsets is not None:
        return ZeroPoints(groups.integers, groups.scales, -groups.offsets / groups.scales)
    integers = (groups.integers.astype(np.int16) + 128).astype(np.uint8)
    return ZeroPoints(integers, groups.scales, np.full_like(groups.scales, 128))


def with_whole_zero_points(points: ZeroPoints) -> ZeroPoints | None:
    """Multiplies the integers of each group by a factor with which the zero point is nearest to a
    whole number. Returns None where bytes do not suffice for that."""
    factors = np.ones_like(points.scales)
    errors = np.full_like(points.scales, np.inf)
    for factor in range(1, 255 // max(1, int(points.integers.max(initial=0))) + 1):
        whole = np.round(points.zero_points * np.float32(factor))
        found = np.abs(whole / np.float32(factor) - points.zero_points)
        # a larger factor must gain more than what float32 cannot tell
        is_better = (found < errors - np.float32(1e-5)) & (whole >= 0) & (whole <= 255)
        factors, errors = np.where(is_better, factor, factors), np.where(is_better, found, errors)
    if errors.mean() > MAX_ZERO_POINT_ERROR:
        return None
    return ZeroPoints(
        (points.integers * factors).astype(np.uint8),
        (points.scales / factors).astype(np.float32),
        np.round(points.zero_points * factors).astype(np.uint8),
    )


def _as_float32(values: NDArray[Any]) -> Node:
    constant = ops.constant(np.ascontiguousarray(values))
    return constant if values.dtype == np.float32 else ops.convert(constant, np.float32)


def _without_flat_groups(groups: Groups) -> Groups:
    """A group whose step is 0 has no zero point: its one value becomes the scale, and all integers
    1."""
    is_flat = groups.scales == 0
    if groups.offsets is None or not is_flat.any():
        return groups
    integers: Any = np.where(is_flat, 1, groups.integers).astype(groups.integers.dtype)
    scales = np.where(is_flat, groups.offsets, groups.scales)
    offsets = np.where(is_flat, 0, groups.offsets)
    return Groups(
        integers,
        np.where(scales == 0, np.float32(1), scales),
        np.where(scales == 0, np.float32(-1), offsets),
    )


def _integer_constant(integers: NDArray[Any]) -> Node:
    """Four bits each where that is enough: a decode step is bound by the bytes of its matrices."""
    if integers.max(initial=0) > 15:
        return ops.constant(np.ascontiguousarray(integers))
    pairs = np.ascontiguousarray(integers).reshape(-1, 2)
    packed = openvino.Tensor(
        pairs[:, 0] | (pairs[:, 1] << 4), openvino.Shape(list(integers.shape)), openvino.Type.u4
    )
    return ops.constant(packed, shared_memory=False)


def _integer(value: int) -> Node:
    return ops.constant(np.int64(value))


def _integers(*values: int | np.int64) -> Node:
    return ops.constant(np.array(values, np.int64))


def _order(*axes: int) -> Node:
    return ops.constant(np.array(axes, np.int32))
