"""A collector of OpenTelemetry spans: receives OTLP over HTTP and prints one JSON line per span.

Run it as `python -m tests.server.otlp_collector`. The first line that it prints is its port. It
reads the two encodings that exporters use.
"""

from __future__ import annotations

import gzip
import http.server
import json
import sys
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path != "/v1/traces":
            self._respond(404)
            return
        if self.headers["Content-Type"] == "application/json":
            message = json_format.Parse(body, ExportTraceServiceRequest())
        else:
            message = ExportTraceServiceRequest.FromString(body)
        for line in spans_of(message):
            print(json.dumps(line), flush=True)
        self._respond(200)

    def _respond(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def spans_of(message: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": span.name,
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "parent_id": span.parent_span_id.hex(),
            "attributes": {pair.key: _value(pair.value) for pair in span.attributes},
            "events": [event.name for event in span.events],
            "service": {pair.key: _value(pair.value) for pair in resource.resource.attributes},
            "duration_ns": span.end_time_unix_nano - span.start_time_unix_nano,
        }
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


if __name__ == "__main__":
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)
