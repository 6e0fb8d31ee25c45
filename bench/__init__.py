"""What is measured and how; never collected by pytest. `python -m bench.compare` measures us beside
the genuine Triton."""
