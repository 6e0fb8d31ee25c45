"""Bilinear resizing of a grey image, in numpy."""

import numpy as np


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """A new image of float32; corners keep their places."""
    image = image.astype(np.float32)
    rows, row_share = _steps(image.shape[0], height)
    columns, column_share = _steps(image.shape[1], width)
    below = np.minimum(rows + 1, image.shape[0] - 1)
    right = np.minimum(columns + 1, image.shape[1] - 1)
    top = _mix(image[rows][:, columns], image[rows][:, right], column_share)
    bottom = _mix(image[below][:, columns], image[below][:, right], column_share)
    return _mix(top, bottom, row_share[:, None])


def _steps(size: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    places = np.linspace(0, size - 1, wanted, dtype=np.float32)
    whole = places.astype(int)
    return whole, places - whole


def _mix(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    return first * (1 - share) + second * share
