"""Checkpoints on disk: Hugging Face folders with safetensors, and GGUF files."""
