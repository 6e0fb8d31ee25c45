"""Limits on what one HTTP/1.1 client may ask of the server.

Every limit has a status code and a test. The numbers are defaults that the server's options may
replace.
Rule: nothing that a client sends makes the server hold more memory than these bounds allow.
"""

from __future__ import annotations

import msgspec


class Http1Limits(msgspec.Struct, frozen=True):
    max_connections: int = 10_000
    """Further connections get a 503 response and are closed."""
    max_pipelined: int = 32
    """Requests of one connection that are under way at once; further ones wait unread."""
    max_held_bytes: int = 64 * 1024
    """Unparsed bytes kept while earlier requests are under way; above this the socket is not
    read."""

    max_target_bytes: int = 8 * 1024
    """Longer request targets get 414."""
    max_headers: int = 100
    """More header fields get 431."""
    max_head_bytes: int = 32 * 1024
    """A longer request line with header fields gets 431."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Triton's --http-max-input-size. Larger bodies get 400, with a message that the route
    chooses."""
    max_chunks: int = 65_536
    """Non-empty chunks of a chunked body; more get 400 and the connection is closed."""
    large_body_bytes: int = 64 * 1024
    """Larger bodies are received straight into memory that the route provides."""

    receive_timeout_s: float = 60.0
    """Time from the first byte of a request to its last; slower requests get 408. Every
    `min_receive_bytes_per_s` received add one second. A new connection has the same time for its
    first byte."""
    min_receive_bytes_per_s: int = 64 * 1024
    keep_alive_timeout_s: float = 600.0
    """A connection that has been idle this long is closed."""
    write_timeout_s: float = 60.0
    """A client that reads nothing of a response for this long is dropped."""
    linger_timeout_s: float = 10.0
    """Time to keep reading after an error response, so that the client sees the response and not a
    reset."""
    max_stream_buffer_bytes: int = 1024 * 1024
    """Unsent bytes of a streamed response; a client that falls further behind is dropped and its
    work cancelled."""
