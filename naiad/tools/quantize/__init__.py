"""`naiad quantize`: a plain checkpoint -> a quantized one, layer by layer, with a report of what it
costs in quality."""
