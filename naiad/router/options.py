"""Declares the options of `naiad router`. --help and the table in docs/router.md derive from it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from naiad.settings.option import Group
from naiad.settings.value import at_least, byte_count, integer, port, real

REPLICAS = Group("Replicas")
LISTEN = Group("Listening")
ACCESS = Group("Access")
LIMITS = Group("Limits")
LOG = Group("Log")


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    replica: Annotated[
        tuple[str, ...],
        REPLICAS(
            "A server to route to, e.g. http://10.0.0.1:8000,grpc=10.0.0.1:8001. Further fields: "
            "name, node, kv_events, kv_replay. May be repeated.",
            metavar="URL[,grpc=HOST:PORT]...",
        ),
    ] = ()
    policy: Annotated[
        str,
        REPLICAS(
            "How a replica is chosen: least_load, round_robin, session, prefix, or module:Class of "
            "your own. The config file sets it per model.",
            metavar="NAME",
            default_text="least_load",
        ),
    ] = ""
    config: Annotated[
        str,
        REPLICAS(
            "TOML or JSON file with replicas, policies and limits. It is read again when it "
            "changes.",
            metavar="FILE",
        ),
    ] = ""
    http_address: Annotated[str, LISTEN("Address for HTTP.", metavar="ADDRESS")] = "127.0.0.1"
    http_port: Annotated[int, LISTEN("Port for HTTP.", parse=port)] = 8000
    grpc_address: Annotated[str, LISTEN("Address for gRPC.", metavar="ADDRESS")] = "127.0.0.1"
    grpc_port: Annotated[int, LISTEN("Port for gRPC.", parse=port)] = 8001
    metrics_address: Annotated[
        str, LISTEN("Address for metrics.", metavar="ADDRESS", default_text="--http-address")
    ] = ""
    metrics_port: Annotated[int, LISTEN("Port for metrics.", parse=port)] = 8002
    reuse_port: Annotated[
        bool,
        LISTEN(
            "Let several routers on this machine listen on the same ports.",
            is_switch=True,
        ),
    ] = False
    num_routers: Annotated[
        int,
        LISTEN(
            "Number of routers that clients use alike. Each allows its part of the limits of API "
            "keys.",
            parse=at_least(1, integer),
        ),
    ] = 1
    router_index: Annotated[
        int,
        LISTEN("Place of this router among them, from 0.", parse=at_least(0, integer)),
    ] = 0
    router_name: Annotated[
        str,
        LISTEN(
            "This router's name: the label `router` of all metrics, and the field `replica` of "
            "JSON log lines.",
            metavar="NAME",
        ),
    ] = ""
    node_name: Annotated[
        str, LISTEN("The machine's name: a field of JSON log lines.", metavar="NAME")
    ] = ""
    http_server_cert: Annotated[
        str, LISTEN("Serve HTTP and gRPC with TLS: the certificate, in PEM.", metavar="FILE")
    ] = ""
    http_server_key: Annotated[
        str, LISTEN("The private key of the certificate, in PEM.", metavar="FILE")
    ] = ""
    api_key_file: Annotated[
        str,
        ACCESS(
            "Require an API key of this file, which `naiad key` writes. Without it, the replicas "
            "check the clients' keys.",
            metavar="FILE",
        ),
    ] = ""
    replica_key_file: Annotated[
        str,
        ACCESS(
            "File with the API key for health checks. With --api-key-file, replicas also get it in "
            "place of the clients' keys.",
            metavar="FILE",
        ),
    ] = ""
    replica_root_cert: Annotated[
        str,
        ACCESS(
            "Certificates that replicas with https or grpcs must be signed by, in PEM.",
            metavar="FILE",
            default_text="those of the system",
        ),
    ] = ""
    remote_admin: Annotated[
        bool,
        ACCESS("Without API keys, let other machines use the admin API, too.", is_switch=True),
    ] = False
    max_input_size: Annotated[
        int, LIMITS("Largest request body over HTTP.", parse=byte_count, metavar="BYTES")
    ] = 64 * 1024 * 1024
    request_memory_byte_size: Annotated[
        int,
        LIMITS(
            "Maximum memory for requests and responses.",
            parse=byte_count,
            metavar="BYTES",
            default_text="a quarter of the memory of the machine or the container",
        ),
    ] = 0
    max_connections: Annotated[
        int,
        LIMITS("Connections to each replica.", parse=at_least(1, integer)),
    ] = 1024
    exit_timeout_secs: Annotated[
        float, LIMITS("Time for requests in flight when the router stops.", parse=at_least(0, real))
    ] = 30.0
    drain_delay_secs: Annotated[
        float,
        LIMITS(
            "Time between not being ready and refusing connections when the router stops.",
            parse=at_least(0, real),
        ),
    ] = 0.0
    log_verbose: Annotated[int, LOG("Level of verbose messages.", parse=at_least(0, integer))] = 0
    log_file: Annotated[str, LOG("Write the log to this file.", metavar="FILE")] = ""
    log_json: Annotated[bool, LOG("Write the log as JSON lines.", is_switch=True)] = False
