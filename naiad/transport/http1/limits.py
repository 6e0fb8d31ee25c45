"""What one HTTP/1.1 client may ask of the server before it is refused.

Every limit here has a status code and a test; the numbers are defaults, the server's options may
replace them.
Rule: nothing that a client sends makes the server hold more memory than these bounds allow.
"""

from __future__ import annotations

import msgspec


class Http1Limits(msgspec.Struct, frozen=True):
    max_connections: int = 10_000
    """Further ones are answered 503 and closed."""
    max_pipelined: int = 32
    """Requests of one connection in work at once; further ones wait unread."""
    max_held_bytes: int = 64 * 1024
    """Unparsed bytes kept while a connection waits for its turn; above it the socket is no longer
    read."""

    max_target_bytes: int = 8 * 1024
    """Longer request targets: 414."""
    max_headers: int = 100
    """More header fields: 431."""
    max_head_bytes: int = 32 * 1024
    """A longer request line with header fields: 431."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Triton's --http-max-input-size. The route chooses the words of the refusal (400)."""
    max_chunks: int = 65_536
    """Non-empty chunks of a chunked body; more: 400 and the connection is closed."""
    large_body_bytes: int = 64 * 1024
    """From here on a body is received straight into memory that the route provides."""

    receive_timeout_s: float = 60.0
    """From the first byte of a request to its last, else 408; every `min_receive_bytes_per_s`
    received buys another second."""
    min_receive_bytes_per_s: int = 64 * 1024
    keep_alive_timeout_s: float = 600.0
    """An idle connection is closed."""
    write_timeout_s: float = 60.0
    """A client that takes nothing of an answer for so long is dropped."""
    linger_timeout_s: float = 10.0
    """After a refusal: how long to go on reading what the client still sends, so that it sees the
    answer and not a reset."""
    max_stream_buffer_bytes: int = 1024 * 1024
    """Unsent bytes of a streamed answer; a reader slower than that is dropped and its work
    cancelled."""
