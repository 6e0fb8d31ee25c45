"""Naiad: an inference server that serves Triton model repositories."""

__version__ = "0.1.0"
