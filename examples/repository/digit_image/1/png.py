"""Reads PNG images of 8 bits per sample (grey, grey with alpha, RGB, RGBA) as grey, with the
standard library and numpy alone."""

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
MAX_PIXELS = 16_000_000


def read_grey(data: bytes) -> np.ndarray:
    """uint8, height x width. Raises ValueError."""
    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG image")
    header, compressed = b"", b""
    for kind, chunk in _chunks(data):
        if kind == b"IHDR":
            header = chunk
        elif kind == b"IDAT":
            compressed += chunk
    if len(header) != 13:
        raise ValueError("PNG without a header")
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colour not in CHANNELS or interlace:
        raise ValueError("only PNG images of 8 bits, without palette and interlacing, are read")
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"the image has {width} x {height} pixels, at most {MAX_PIXELS} are read")
    channels = CHANNELS[colour]
    pixels = _unfiltered(
        _inflate(compressed, height * (width * channels + 1)), height, width * channels, channels
    )
    return _grey(pixels.reshape(height, width, channels))


def _chunks(data: bytes):
    at = len(SIGNATURE)
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + 8 + size]
        at += 12 + size


def _inflate(data: bytes, size: int) -> bytes:
    try:
        content = zlib.decompressobj().decompress(data, size)
    except zlib.error as error:
        raise ValueError(f"damaged PNG: {error}") from None
    if len(content) != size:
        raise ValueError("damaged PNG: too little data")
    return content


def _unfiltered(content: bytes, height: int, row_bytes: int, step: int) -> np.ndarray:
    """Each row says how it was predicted from the pixels to the left and above."""
    rows = np.frombuffer(content, np.uint8).reshape(height, row_bytes + 1)
    result = np.zeros((height, row_bytes), np.uint8)
    above = np.zeros(row_bytes, np.uint8)
    for at in range(height):
        kind, row = int(rows[at, 0]), rows[at, 1:]
        if kind == 0:
            line = row
        elif kind == 2:
            line = row + above
        elif kind in (1, 3, 4):
            line = _predicted(kind, row, above, step)
        else:
            raise ValueError(f"damaged PNG: unknown filter {kind}")
        result[at] = above = line
    return result


def _predicted(kind: int, row: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    line = [0] * len(row)
    for at, value in enumerate(row.tolist()):
        left = line[at - step] if at >= step else 0
        up = int(above[at])
        corner = int(above[at - step]) if at >= step else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            guess = min((left, up, corner), key=lambda near: abs(left + up - corner - near))
        line[at] = (value + guess) & 0xFF
    return np.array(line, np.uint8)


def _grey(pixels: np.ndarray) -> np.ndarray:
    if pixels.shape[2] >= 3:
        return (pixels[:, :, :3] @ np.array([0.299, 0.587, 0.114], np.float32)).astype(np.uint8)
    return pixels[:, :, 0]
