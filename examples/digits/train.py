"""Trains the digit classifier of the examples on scikit-learn's handwritten digits, and writes it
as ONNX and as TorchScript.

    pip install torch==2.13.0 scikit-learn onnx onnxscript
    python examples/digits/train.py

The digits come as 8x8 pixels and are enlarged to 32x32. A quarter of them is kept for testing: they
are stored in test_digits.npz, and accuracy.json says how many of them the model gets right. The
same seed gives the same model.
"""

import io
import json
import struct
import sys
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EXAMPLES = Path(__file__).resolve().parent.parent
sys.path.append(str(EXAMPLES / "repository/digit_image/1"))
from resize import resize  # noqa: E402

EPOCHS = 12
SEED = 7
LABELS = (EXAMPLES / "repository/digits/labels.txt").read_text().split()


class DigitClassifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 5, stride=2, padding=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 16, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, image):
        return self.layers(image)


def data():
    digits = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        digits.images.astype(np.uint8),
        digits.target,
        test_size=0.25,
        random_state=SEED,
        stratify=digits.target,
    )
    np.savez_compressed(
        Path(__file__).parent / "test_digits.npz",
        images=test_images,
        labels=test_labels.astype(np.uint8),
    )
    return (
        enlarged(train_images),
        enlarged(test_images),
        torch.from_numpy(train_labels),
        torch.from_numpy(test_labels),
    )


def enlarged(images):
    """8x8 pixels of 0 to 16 -> 1x32x32 of 0 to 1."""
    return torch.from_numpy(
        (np.stack([resize(image, 32, 32) for image in images])[:, None] / 16).astype(np.float32)
    )


def train(model, images, labels):
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images))
        total = 0.0
        for rows in order.split(32):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1:2} loss {total / len(images):.4f}")


def write_onnx(model, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.onnx.export(
        model, (torch.zeros(2, 1, 32, 32),), input_names=["image"], output_names=["scores"],
        dynamic_shapes=({0: batch},), dynamo=True,
        external_data=False, verbose=False,
    )  # fmt: skip
    proto = program.model_proto
    # Where each node was written in Python, paths included: of no use to whoever serves it.
    for part in (
        proto,
        proto.graph,
        *proto.graph.node,
        *proto.graph.value_info,
        *proto.graph.input,
        *proto.graph.output,
    ):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    path.write_bytes(proto.SerializeToString())


def write_torchscript(model, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, torch.zeros(1, 1, 32, 32)), buffer)
    with (
        zipfile.ZipFile(buffer) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target,
    ):
        for member in source.infolist():
            if not member.filename.endswith(".debug_pkl"):
                target.writestr(zipfile.ZipInfo(member.filename), source.read(member))


def write_sample(image, label, folder):
    """A request to send with curl, and the same digit as a picture."""
    pixels = image.numpy()
    request = {
        "inputs": [
            {
                "name": "image",
                "datatype": "FP32",
                "shape": [1, 1, 32, 32],
                "data": [round(float(v), 3) for v in pixels.reshape(-1)],
            }
        ],
        "outputs": [{"name": "scores", "parameters": {"classification": 1}}],
    }
    (folder / f"{LABELS[label]}.json").write_text(json.dumps(request, separators=(",", ":")) + "\n")
    (folder / f"{LABELS[label]}.png").write_bytes(
        png((resize(pixels[0], 96, 96) * 255).astype(np.uint8))
    )


def png(image):
    def chunk(kind, content):
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = b"".join(b"\0" + row.tobytes() for row in image)
    header = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    train_images, test_images, train_labels, test_labels = data()
    model = DigitClassifier()
    train(model, train_images, train_labels)
    model.eval()
    with torch.inference_mode():
        correct = int((model(test_images).argmax(1) == test_labels).sum())
    print(
        f"{correct} of {len(test_labels)} test digits are right ({correct / len(test_labels):.2%})"
    )
    write_onnx(model, EXAMPLES / "repository/digits/1/model.onnx")
    write_torchscript(model, EXAMPLES / "pytorch/mnist-cnn/1/model.pt")
    folder = Path(__file__).parent
    seven = int((test_labels == 7).nonzero()[0])
    write_sample(test_images[seven], 7, folder)
    accuracy = {"correct": correct, "of": len(test_labels)}
    (folder / "accuracy.json").write_text(json.dumps(accuracy) + "\n")


if __name__ == "__main__":
    main()
