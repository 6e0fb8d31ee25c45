"""First step of the ensemble `digit_reader`: a PNG file of any size -> the 32x32 pixels that the
classifier takes.

Ink is bright on dark, as in the training data; a dark digit on a light page is turned round.
"""

import numpy as np
import triton_python_backend_utils as pb_utils
from png import read_grey
from resize import resize


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)
        try:
            pixels = np.stack([self._pixels(file) for file in files])
        except ValueError as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)])

    def _pixels(self, file):
        image = resize(read_grey(file), 32, 32) / 255
        if image.mean() > 0.5:
            image = 1 - image
        return image[None].astype(np.float32)
