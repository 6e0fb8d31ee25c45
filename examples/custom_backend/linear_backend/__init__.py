"""backend: "linear" serves a file weights.npz: y = x @ w + b."""

import numpy as np

from naiad.backends.custom import Array, ArrayBackend, Context


class LinearBackend(ArrayBackend):
    def open(self, context: Context) -> None:
        with np.load(context.directory / "weights.npz") as file:
            self.w, self.b = file["w"], file["b"]

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"] @ self.w + self.b}
