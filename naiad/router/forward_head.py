"""The head that a replica gets in place of the client's.

Everything that the client sent stays as it was, request ids, traces and keys included, except for
fields that concern one connection and `Host`, which names the replica.
Rule: requests with the same head share a ForwardHead, so a head is rendered once per replica.
"""

from __future__ import annotations

from collections.abc import Collection

from naiad.transport.http1.head import Head

_HOP_BY_HOP = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"host",
))  # fmt: skip
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class ForwardHead:
    __slots__ = ("_end", "_has_length", "_rendered", "_start", "is_openai", "is_safe")

    def __init__(
        self,
        head: Head,
        *,
        is_openai: bool = False,
        key_headers: Collection[str] = (),
        replica_key: str = "",
    ) -> None:
        """`replica_key` is what the replica gets in place of the key in `key_headers`, if it is not
        empty."""
        self.is_openai = is_openai
        self.is_safe = head.method in _SAFE_METHODS
        target = head.path + (b"?" + head.query if head.query else b"")
        dropped = _HOP_BY_HOP | {
            name.strip().lower() for name in head.headers.get(b"connection", b"").split(b",")
        }
        self._has_length = not head.is_chunked
        if head.is_chunked:
            dropped |= {b"content-length"}
        lines = []
        if replica_key:
            dropped |= {name.encode() for name in key_headers}
            lines.append(b"Authorization: Bearer %b\r\n" % replica_key.encode())
        for line in head.text.split(b"\r\n")[1:]:
            name = line.partition(b":")[0].lower()
            if line and name not in dropped:
                lines.append(line + b"\r\n")
        self._start = b"%b %b HTTP/1.1\r\nHost: " % (head.method.encode("ascii"), target)
        self._end = b"\r\n" + b"".join(lines)
        self._rendered: dict[str, bytes] = {}

    def render(self, authority: str, body_bytes: int) -> bytes:
        rendered = self._rendered.get(authority)
        if rendered is None:
            rendered = self._start + authority.encode() + self._end
            if self._has_length:
                rendered += b"\r\n"
                self._rendered[authority] = rendered
        if not self._has_length:
            # A chunked body has been received as a whole, so its length is known now.
            rendered += b"Content-Length: %d\r\n\r\n" % body_bytes
        return rendered
