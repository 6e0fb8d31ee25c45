"""A replica that counts the requests that it parses, with parsers that are not ours: h11 and h2.

Each request carries an id in its body (HTTP: `id=N;`, gRPC: the id of the ModelInferRequest), and
an honest response repeats it. `respond` decides what a request gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable

import h2.config
import h2.connection
import h2.events
import h11

from naiad.pb import grpc_service_pb2 as pb

_ID = re.compile(rb"id=(\d+);")


def honest(number: int) -> list[bytes]:
    """The response of a replica that does what it should, in the pieces that it writes."""
    body = b"answer to %d;" % number
    return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]


class CountingReplica:
    def __init__(self) -> None:
        self.parsed: list[int] = []
        """The ids of all requests, in the order of their arrival; -1 for one without an id."""
        self.heads: list[list[tuple[bytes, bytes]]] = []
        """Their header fields, with lower-case names."""
        self.broken: list[str] = []
        """What was not a request."""
        self.respond: Callable[[int], list[bytes]] = honest
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    def note(self, number: int, fields: list[tuple[bytes, bytes]]) -> None:
        self.parsed.append(number)
        self.heads.append(fields)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError):
                await self._converse(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER)
        fields: list[tuple[bytes, bytes]] = []
        body = b""
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError as error:
                self.broken.append(str(error))
                return
            if event is h11.NEED_DATA:
                parser.receive_data(await reader.read(1 << 16))
            elif isinstance(event, h11.Request):
                fields = [(bytes(name), bytes(value)) for name, value in event.headers]
                body = b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                found = _ID.match(body)
                number = int(found[1]) if found else -1
                self.note(number, fields)
                for piece in self.respond(number):
                    if not piece:
                        return  # the end of the connection belongs to the response
                    writer.write(piece)
                    await writer.drain()
                # What was written is known to h11 only as a whole response.
                parser.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                parser.send(h11.EndOfMessage())
                if parser.our_state is h11.MUST_CLOSE:
                    return
                parser.start_next_cycle()
            else:
                return


class CountingGrpcReplica(CountingReplica):
    """`respond` is not asked here; `trailers` are sent with each response."""

    trailers: Callable[[int], list[tuple[str, str]]] = staticmethod(lambda number: [])

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        parser = h2.connection.H2Connection(config)
        parser.initiate_connection()
        writer.write(parser.data_to_send())
        fields: dict[int, list[tuple[bytes, bytes]]] = {}
        bodies: dict[int, bytes] = {}
        while data := await reader.read(1 << 16):
            try:
                events = parser.receive_data(data)
            except h2.exceptions.ProtocolError as error:
                self.broken.append(str(error))
                return
            for event in events:
                if isinstance(event, h2.events.RequestReceived):
                    fields[event.stream_id] = list(event.headers)
                    bodies[event.stream_id] = b""
                elif isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] += event.data
                    parser.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    self._answer(parser, event.stream_id, bodies, fields)
            writer.write(parser.data_to_send())

    def _answer(
        self,
        parser: h2.connection.H2Connection,
        stream_id: int,
        bodies: dict[int, bytes],
        fields: dict[int, list[tuple[bytes, bytes]]],
    ) -> None:
        request = pb.ModelInferRequest.FromString(bodies.pop(stream_id)[5:])
        number = int(request.id or -1)
        self.note(number, fields.pop(stream_id))
        message = pb.ModelInferResponse(model_name="m", id=request.id).SerializeToString()
        parser.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        parser.send_data(stream_id, struct.pack(">BI", 0, len(message)) + message)
        parser.send_headers(
            stream_id, [("grpc-status", "0"), *self.trailers(number)], end_stream=True
        )
