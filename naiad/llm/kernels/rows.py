"""What a product may be given: 16-bit rows, rows quantized to fp8, or one row prepared for the int4
gemv."""

from __future__ import annotations

from torch import Tensor

from naiad.llm.kernels.int4_gemv import PreparedRow
from naiad.llm.kernels.quantize_rows import QuantizedRows

Rows = Tensor | QuantizedRows | PreparedRow
