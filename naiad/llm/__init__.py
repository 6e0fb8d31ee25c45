"""The language-model engine: continuous batching over a paged KV cache, usable as a library without
the server.

`start.load.load_engine(path)` returns an `Engine`: submit a request, step, read tokens, cancel.
docs/llm-engine.md follows a token through it. Nothing here imports torch until one of its modules
is imported by name.
"""
