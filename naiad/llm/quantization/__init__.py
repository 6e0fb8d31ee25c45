"""Quantized checkpoints: which numbers they hold (matrix), how each format writes them (formats),
how matrices are quantized."""
