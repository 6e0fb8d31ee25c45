"""The head that a replica gets in place of the client's.

Everything that the client sent stays as it was, request ids, traces and keys included, except for
fields that concern one connection, `Host`, which names the replica, and the length of the body.
Rule: the length is that of the body which follows, whatever the client wrote. Requests with the
      same head share a ForwardHead, so a head is rendered once per replica.
"""

from __future__ import annotations

from collections.abc import Collection

from naiad.router.http_fields import HOP_BY_HOP, WRITTEN, named_in_connection
from naiad.transport.http1.head import Head

_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class ForwardHead:
    __slots__ = ("_end", "_rendered", "_start", "is_openai", "is_safe")

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
        keys = frozenset(name.encode() for name in key_headers)
        named = named_in_connection(head.headers.get(b"connection", b""), keys)
        dropped = HOP_BY_HOP | WRITTEN | named
        lines = []
        if replica_key:
            dropped |= keys
            lines.append(b"Authorization: Bearer %b\r\n" % replica_key.encode())
        for line in head.text.split(b"\r\n")[1:]:
            name = line.partition(b":")[0].lower()
            # A field that the parser did not see has no place in what is sent.
            if name in head.headers and name not in dropped:
                lines.append(line + b"\r\n")
        self._start = b"%b %b HTTP/1.1\r\nHost: " % (head.method.encode("ascii"), target)
        self._end = b"\r\n" + b"".join(lines)
        self._rendered: dict[str, bytes] = {}

    def render(self, authority: str, body_bytes: int) -> bytes:
        rendered = self._rendered.get(authority)
        if rendered is None:
            rendered = self._rendered[authority] = self._start + authority.encode() + self._end
        if not body_bytes and self.is_safe:
            return rendered + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n" % (rendered, body_bytes)
