"""Measurements that a page starts: `naiad perf` and `naiad analyze` as child processes."""
