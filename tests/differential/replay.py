"""Sends the cases of a suite to a running server and returns its normalised responses."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import grpc

from bench import oracle
from tests.differential import exchange_grpc, exchange_http
from tests.differential.case import Case, HttpCase, Response, post
from tests.differential.response import normalised, reference
from tests.differential.suites import Suite
from tests.server.harness import Endpoints, Server, free_ports, port_flags

UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
]


class Replay:
    """A server that receives the cases, over one gRPC channel and one HTTP connection per case."""

    def __init__(self, server: Endpoints, suite: Suite, is_genuine: bool = False) -> None:
        self.server = server
        self.is_genuine = is_genuine
        self.suite = suite
        self.channel = grpc.insecure_channel(server.grpc, options=UNLIMITED)

    def response(self, case: Case) -> Response:
        if isinstance(case, HttpCase):
            if case.is_settled_first:
                self.wait_settled()
            response = exchange_http.exchange(case, self.server.port(case.port))
        else:
            response = exchange_grpc.exchange(case, self.channel)
        return normalised(
            reference(response) if self.is_genuine else response,
            case.normalise,
            self.suite.repositories,
        )

    def wait_settled(self) -> None:
        """Polls the index until no model is loading or unloading. The server offers no event to
        wait for."""
        while "LOADING" in json.dumps(
            exchange_http.exchange(post("index", "/v2/repository/index"), self.server.http_port)
        ):
            time.sleep(0.02)

    def close(self) -> None:
        self.channel.close()


@contextlib.contextmanager
def genuine_triton(suite: Suite) -> Iterator[Server]:
    ports = free_ports()
    command = oracle.serve_command(suite.repositories, [*port_flags(ports), *suite.flags])
    server = Server(command, ports, oracle.serve_environment())
    try:
        yield server.wait_started()
    finally:
        server.stop()
