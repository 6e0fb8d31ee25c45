"""The language-model engine: continuous batching over a paged KV cache, usable as a library without
the server.

`load.load_engine(path)` gives an `Engine`: submit a request, step, take tokens out, cancel.
docs/llm-engine.md shows the way of a token. Nothing here imports torch until one of its modules is
imported by name.
"""
