"""The playground in a browser: tensors, files, images, embeddings, code that works when pasted."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.server.harness import Server

SEVEN = [(0.25, 0.15), (0.75, 0.15), (0.55, 0.5), (0.42, 0.88)]
ONE = [(0.5, 0.1), (0.5, 0.9)]


def draw(page: Page, points: list[tuple[float, float]]) -> None:
    box = page.locator("canvas").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()


@pytest.mark.parametrize(("points", "digit"), [(SEVEN, "7"), (ONE, "1")])
def test_reads_a_digit_that_was_drawn(
    server: Server, open_page: OpenPage, points: list[tuple[float, float]], digit: str
) -> None:
    page = open_page(server, "playground/digits")
    expect(page.locator("canvas")).to_be_visible()
    draw(page, points)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_have_text(digit)


@pytest.mark.parametrize("language", ["curl", "tritonclient HTTP", "tritonclient gRPC"])
def test_the_code_of_a_request_works_when_pasted(
    server: Server, open_page: OpenPage, language: str
) -> None:
    page = open_page(server, "playground/add_sub")
    page.get_by_label("Data of INPUT0").fill("[10, 20, 30, 40]")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Response")).to_contain_text("OUTPUT0")
    page.get_by_text("Show as code").click()
    page.get_by_role("tab", name=language, exact=True).click()
    page.get_by_role("button", name="Copy").click()
    code = page.evaluate("navigator.clipboard.readText()")
    command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "10" in done.stdout
    assert "43" in done.stdout


def test_an_error_is_explained_and_nothing_is_sent_that_cannot_be_right(
    server: Server, open_page: OpenPage
) -> None:
    page = open_page(server, "playground/add_sub")
    response = page.get_by_role("region", name="Response")
    page.get_by_label("Data of INPUT0").fill("[1, 2]")
    page.get_by_role("button", name="Send").click()
    expect(response).to_contain_text("the shape [1,4] has 4 elements, and the data has 2")
    page.get_by_label("Data of INPUT0").fill("[1, 2,")
    page.get_by_role("button", name="Send").click()
    expect(response).to_contain_text("the data is not JSON")
    page.get_by_label("Data of INPUT0").fill("1")
    page.get_by_label("Shape of INPUT0").fill("1, 5")
    page.get_by_role("button", name="Send").click()
    expect(response).to_contain_text("The request is not valid")
    expect(response).to_contain_text("unexpected shape for input 'INPUT0'")


def png(colour: tuple[int, int, int], side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + bytes(colour) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def numbers(page: Page) -> list[float]:
    """The values of the response."""
    response = page.get_by_role("region", name="Response")
    expect(response).to_contain_text("MEANS")
    return [float(value) for value in json.loads(response.locator("pre").inner_text())]


def send_and_read(page: Page) -> list[float]:
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Response")).to_contain_text("MEANS")
    page.get_by_text("Values").click()
    return numbers(page)


@pytest.mark.parametrize("model", ["means", "half_means"])
def test_an_image_becomes_a_tensor_and_the_code_sends_the_same(
    server: Server, open_page: OpenPage, model: str, tmp_path: Path
) -> None:
    """FP16 is sent and received as bytes, because JSON does not have it."""
    page = open_page(server, f"playground/{model}")
    page.get_by_label("Image for IMAGE", exact=True).set_input_files(
        {"name": "red.png", "mimeType": "image/png", "buffer": png((255, 102, 0), 48)}
    )
    expect(page.get_by_text("red.png: 48")).to_be_visible()
    assert send_and_read(page) == pytest.approx([1.0, 0.4, 0.0], abs=2e-3)

    page.get_by_role("button", name="ImageNet's mean and deviation").click()
    values = send_and_read(page)
    assert values == pytest.approx([2.249, -0.25, -1.804], abs=5e-3)

    page.get_by_text("Show as code").click()
    page.get_by_role("tab", name="tritonclient HTTP", exact=True).click()
    code = page.get_by_role("region", name="Code").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download request.bin").click()
    download.value.save_as(tmp_path / "request.bin")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2.24" in done.stdout
    page.get_by_role("tab", name="curl", exact=True).click()
    curl = page.get_by_role("region", name="Code").inner_text()
    sent = subprocess.run(
        ["bash", "-c", curl + " -s -o response"], cwd=tmp_path, capture_output=True, check=False
    )
    assert b"MEANS" in (tmp_path / "response").read_bytes(), sent.stderr


def test_a_file_becomes_a_tensor_or_says_why_it_cannot(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "playground/means")
    page.get_by_role("tab", name="File").click()
    field = page.get_by_label("File for IMAGE")

    def upload(name: str, content: bytes) -> None:
        field.set_input_files({"name": name, "mimeType": "", "buffer": content})

    def saved(array: npt.NDArray[np.floating[Any]]) -> bytes:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    image = np.zeros((2, 3, 64, 64), np.float32)
    image[:, 1] = 0.5
    upload("image.npy", saved(image))
    expect(page.get_by_text("image.npy: [2, 3, 64, 64]")).to_be_visible()
    page.get_by_role("button", name="Send").click()
    assert numbers(page) == [0, 0.5, 0, 0, 0.5, 0]
    upload("double.npy", saved(image.astype(np.float64)))
    expect(page.get_by_text("its type is FP64, and the input is FP32")).to_be_visible()
    upload("short.bin", b"1234")
    expect(page.get_by_text("it has 4 bytes, and the shape")).to_be_visible()


def test_texts_are_compared_by_their_embeddings(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "playground/letters")
    page.get_by_label("Texts").fill("listen\nsilent\nzzz")
    page.get_by_role("button", name="Compare", exact=True).click()
    matrix = page.get_by_role("region", name="Matrix of similarities")
    expect(matrix.locator("tbody tr").first).to_have_text(
        re.compile(r"listen\s*1\.00\s*1\.00\s*0\.00$")
    )
    expect(page.get_by_text("Most similar: 1 and 2, cosine 1.")).to_be_visible()
    page.get_by_text("Show as code").click()
    page.get_by_role("tab", name="openai").click()
    code = page.get_by_role("region", name="Code").inner_text()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].startswith("2 26 ")


def test_the_trace_of_a_request_is_a_waterfall(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "playground/digits")
    page.get_by_label("Trace the request").check()
    page.get_by_role("button", name="Send").click()
    picture = page.get_by_role("img", name="Trace of digits")
    expect(picture).to_have_attribute("aria-label", re.compile(r"queue [\d.]+ .s, .*compute"))
