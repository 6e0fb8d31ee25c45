"""Benchmarks, which pytest does not collect. `python -m bench.compare` compares with Triton."""
