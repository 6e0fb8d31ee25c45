"""Declares every option of the server: name, type, group, help text and default.

The flag is the field's name with dashes. The flags are Triton's, spelled as Triton spells them,
except those marked is_extension. naiad.settings.effect lists the options that have no effect yet.
The command line, the environment variables, the config file and docs/settings.md derive from these
declarations.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec

from naiad.settings import compound, value
from naiad.settings.compound import (
    BackendSetting,
    CacheSetting,
    ClaimSetting,
    DeviceBytes,
    DeviceFraction,
    HostPolicy,
    MetricsSetting,
    PortRange,
    ResourceLimit,
    Restriction,
    TraceSetting,
)
from naiad.settings.option import Group

SERVER = Group("Server")
LOGGING = Group("Logging")
REPOSITORY = Group("Model Repository")
WORKERS = Group("Workers")
HTTP = Group("HTTP")
GRPC = Group("GRPC")
SAGEMAKER = Group("Sagemaker")
VERTEX = Group("Vertex")
METRICS = Group("Metrics")
TRACING = Group("Tracing")
BACKEND = Group("Backend")
AGENT = Group("Repository Agent")
CACHE = Group("Response Cache")
RATE = Group("Rate Limiter")
MEMORY = Group("Memory/Device Management")
ACCESS = Group("Access")
DEPRECATED = Group("DEPRECATED")

count = value.at_least(0, value.integer)
seconds = value.at_least(0, value.real)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, SERVER("Name of this server in /v2 and in the start-up table.")] = "triton"
    node_name: Annotated[
        str,
        SERVER(
            "The machine's name in a cluster: the label `node` of all metrics and a field of JSON "
            "log lines. `naiad cluster` sets it.",
            is_extension=True,
            metavar="NAME",
        ),
    ] = ""
    replica_name: Annotated[
        str,
        SERVER(
            "This server's name in a cluster: the label `replica` of all metrics and a field of "
            "JSON log lines. `naiad cluster` sets it.",
            is_extension=True,
            metavar="NAME",
        ),
    ] = ""
    exit_timeout_secs: Annotated[
        int,
        SERVER(
            "Maximum time to wait at shutdown for requests in flight, in seconds.",
            parse=count,
        ),
    ] = 30
    drain_delay_secs: Annotated[
        float,
        SERVER(
            "Time at shutdown, in seconds, during which the server still accepts requests but "
            "already reports that it is not ready, so that load balancers stop sending requests.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 0.0
    busy_poll_us: Annotated[
        int,
        SERVER(
            "While requests arrive one at a time, poll for the next event for up to this many "
            "microseconds before sleeping. Lowers latency for clients that send one request at a "
            "time, at the cost of CPU. 0 turns polling off.",
            parse=count,
            is_extension=True,
        ),
    ] = 200
    frontend_processes: Annotated[
        int,
        SERVER(
            "Number of processes that receive, decode and encode inference requests and responses. "
            "One process schedules them all. 0 chooses the number from the CPUs that the server "
            "may use: 1 where there are fewer than 8.",
            parse=count,
            is_extension=True,
        ),
    ] = 0
    fast_paths: Annotated[
        bool,
        SERVER(
            "Let HTTP and gRPC inference requests that repeat an earlier request except for their "
            "data skip most of parsing and validation. Responses are the same either way; false "
            "helps to find out whether a problem lies there.",
            is_extension=True,
        ),
    ] = True
    direct_calls: Annotated[
        bool,
        SERVER(
            "Let a model that keeps calling another one (BLS) call its worker directly, without "
            "passing through the server.",
            is_extension=True,
        ),
    ] = True
    ensemble_relay: Annotated[
        bool,
        SERVER(
            "Let a batch of an ensemble's requests move from one step to the next as one batch.",
            is_extension=True,
        ),
    ] = True
    config_file: Annotated[
        str,
        SERVER(
            "TOML file with options. Each key is a flag without its leading dashes. The command "
            "line and the environment override the file.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""

    log_verbose: Annotated[
        int,
        LOGGING(
            "Verbosity of the log. 0 turns verbose lines off; higher numbers log more.",
            parse=value.verbose_level,
        ),
    ] = 0
    log_info: Annotated[bool, LOGGING("Write INFO lines.")] = True
    log_warning: Annotated[bool, LOGGING("Write WARNING lines.")] = True
    log_error: Annotated[bool, LOGGING("Write ERROR lines.")] = True
    log_format: Annotated[
        str,
        LOGGING(
            "Format of the start of a log line: 'default' is LMMDD hh:mm:ss.ssssss, 'ISO8601' is "
            "YYYY-MM-DDThh:mm:ssZ L, where L is the severity.",
            parse=value.log_format,
            metavar="default|ISO8601",
        ),
    ] = "default"
    log_file: Annotated[
        str, LOGGING("Write the log to this file instead of the console.", metavar="FILE")
    ] = ""
    log_json: Annotated[
        bool, LOGGING("Write one JSON object per line, with request ids.", is_extension=True)
    ] = False

    model_repository: Annotated[
        tuple[str, ...],
        REPOSITORY(
            "Directory of models, or a URL of one: s3://, gs://, as:// or hf://. May be repeated. "
            "A model that is in two repositories is not served.",
            metavar="DIR",
            aliases=("model-store",),
        ),
    ] = ()
    repository_cache_directory: Annotated[
        str,
        REPOSITORY(
            "Directory for local copies of remote repositories.",
            metavar="DIR",
            default_text="~/.cache/naiad/repositories",
            is_extension=True,
        ),
    ] = ""
    model: Annotated[
        tuple[str, ...],
        REPOSITORY(
            "Serve a model without a repository. CHECKPOINT is a language model (a checkpoint "
            "folder, a .gguf file, a name known to `naiad pull` or a Hugging Face hub id) or a "
            "file of another model (.onnx, .xml, .pt2, .py). NAME=CHECKPOINT sets the model's "
            "name. May be repeated.",
            metavar="CHECKPOINT",
            is_extension=True,
        ),
    ] = ()
    exit_on_error: Annotated[
        bool,
        REPOSITORY(
            "Exit if a model fails to load at start. If false, serve the models that loaded."
        ),
    ] = True
    disable_auto_complete_config: Annotated[
        bool,
        REPOSITORY(
            "Use config.pbtxt as it is. Do not complete missing fields from the model.",
            is_switch=True,
        ),
    ] = False
    strict_readiness: Annotated[
        bool,
        REPOSITORY(
            "Report the server as ready only when all models are ready. If false, report it as "
            "ready as soon as it responds to requests."
        ),
    ] = True
    model_control_mode: Annotated[
        str,
        REPOSITORY(
            "Which models are loaded, and when. none: all models at start. poll: all models at "
            "start, then the repository is polled for changes. explicit: the models given by "
            "--load-model at start, then those that load and unload requests name.",
            parse=value.choice("model-control-mode", "none", "poll", "explicit"),
            metavar="none|poll|explicit",
        ),
    ] = "none"
    repository_poll_secs: Annotated[
        int, REPOSITORY("Interval between polls of the repository, in seconds.", parse=count)
    ] = 15
    load_model: Annotated[
        tuple[str, ...],
        REPOSITORY(
            "Model to load at start in explicit mode. May be repeated. '*', which must be the only "
            "one, loads all models.",
            metavar="MODEL",
        ),
    ] = ()
    model_config_name: Annotated[
        str,
        REPOSITORY(
            "Use a model's configs/NAME.pbtxt, if it exists, instead of its config.pbtxt.",
            parse=value.model_config_name,
            metavar="NAME",
        ),
    ] = ""
    model_load_thread_count: Annotated[
        int,
        REPOSITORY(
            "Maximum number of models that are loaded concurrently.",
            parse=value.at_least(1, value.integer),
        ),
    ] = 4
    model_load_retry_count: Annotated[
        int, REPOSITORY("Number of times a failed load is retried.", parse=count)
    ] = 0
    model_namespacing: Annotated[
        bool,
        REPOSITORY(
            "Serve models with the same name from different repositories, distinguished by their "
            "namespaces."
        ),
    ] = False
    enable_peer_access: Annotated[
        bool, REPOSITORY("Let GPUs read each other's memory directly.")
    ] = True

    worker_max_restarts: Annotated[
        int,
        WORKERS(
            "A worker that dies more often than this within --worker-restart-window-secs is in a "
            "crash loop: its model becomes unavailable, and the worker is restarted only "
            "occasionally.",
            parse=count,
            is_extension=True,
        ),
    ] = 5
    worker_restart_window_secs: Annotated[
        float,
        WORKERS(
            "Time in which deaths of a worker are counted for --worker-max-restarts, in seconds.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 60.0
    max_queue_size: Annotated[
        int,
        WORKERS(
            "Maximum number of requests that wait for a model, for each priority level, unless the "
            "model's config sets max_queue_size; for a model with sequence_batching, of sequences "
            "that wait for a slot. Further requests are refused at once, with 503 and Retry-After. "
            "0 means no limit, as in Triton, and no limit by time either.",
            parse=count,
            is_extension=True,
        ),
    ] = 65536
    max_queue_wait_secs: Annotated[
        float,
        WORKERS(
            "Maximum time that requests may be expected to wait for a model, in seconds, by the "
            "measured rate at which it serves, unless the model's config has a queue policy. "
            "Further requests are refused at once, with 503 and Retry-After; until the queue has "
            "been empty, requests then wait for at most a twentieth of this time. 32 requests may "
            "always wait for each one that is executed. 0 means no limit.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 0.0
    default_execution_timeout_secs: Annotated[
        float,
        WORKERS(
            "Kill a worker whose execute call takes longer than this, in seconds, unless its model "
            "sets a limit of its own. 0 means no limit.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 0.0

    model_load_timeout_secs: Annotated[
        float,
        WORKERS(
            "Fail the load of a model if one of its instances takes longer than this to "
            "initialize and warm up, in seconds, unless the model sets a limit of its own. 0 means "
            "no limit.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 1200.0
    worker_restart_wait_secs: Annotated[
        float,
        WORKERS(
            "When all workers of a model have died, let its requests wait this long, in seconds, "
            "for one of them to restart. After that, requests get status 503 until the model "
            "serves again.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 5.0
    max_model_instances: Annotated[
        int,
        WORKERS(
            "Maximum number of instances of one model. Each instance is a process.",
            parse=value.at_least(1, value.integer),
            is_extension=True,
        ),
    ] = 256
    worker_environment: Annotated[
        tuple[str, ...],
        WORKERS(
            "Environment variable that models see; * stands for any characters. May be repeated. "
            "The default is all variables except the server's own secrets, which pass only if they "
            "are named exactly. Variables that Python and frameworks need always pass.",
            metavar="NAME",
            default_text="*",
            is_extension=True,
        ),
    ] = ("*",)
    worker_user: Annotated[
        str,
        WORKERS(
            "Run workers as this user, given by name or id. The server must run as root.",
            metavar="USER",
            is_extension=True,
        ),
    ] = ""
    worker_memory_limit: Annotated[
        int,
        WORKERS(
            "Maximum private memory of a worker, and of each process that its model starts. "
            "Allocations beyond it fail. 0 means no limit.",
            parse=value.at_least(0, value.byte_count),
            metavar="BYTES",
            is_extension=True,
        ),
    ] = 0
    worker_process_limit: Annotated[
        int,
        WORKERS(
            "Maximum number of processes and threads of --worker-user, which is required. It is "
            "shared by all workers. 0 means no limit.",
            parse=count,
            is_extension=True,
        ),
    ] = 0

    allow_http: Annotated[bool, HTTP("Serve HTTP.")] = True
    http_address: Annotated[
        str,
        HTTP(
            "Address to listen on for HTTP.",
            metavar="ADDRESS",
            default_text="127.0.0.1; tritonserver: 0.0.0.0",
        ),
    ] = "127.0.0.1"
    http_port: Annotated[
        int,
        HTTP(
            "Port to listen on for HTTP. 0 selects a free port.", parse=value.port, metavar="PORT"
        ),
    ] = 8000
    reuse_http_port: Annotated[
        bool,
        HTTP("Allow several servers to listen on the same HTTP port. All of them must set this."),
    ] = False
    http_header_forward_pattern: Annotated[
        str,
        HTTP(
            "Forward headers whose names match this regular expression as request parameters.",
            parse=value.pattern,
            metavar="REGEX",
        ),
    ] = ""
    http_thread_count: Annotated[
        int,
        HTTP("Most frontend processes that --frontend-processes=0 chooses."),
    ] = 8
    http_max_input_size: Annotated[
        int,
        HTTP(
            "Maximum size of a request body, before and after decompression.",
            parse=value.http_max_input_size,
            metavar="BYTES",
        ),
    ] = 64 << 20
    http_max_json_size: Annotated[
        int,
        HTTP(
            "Maximum size of JSON that is not tensor data: bodies of OpenAI's routes and of "
            "generate, and inference requests without the data of their inputs.",
            parse=value.at_least(1024, value.byte_count),
            metavar="BYTES",
            is_extension=True,
        ),
    ] = 4 << 20
    http_restricted_api: Annotated[
        tuple[Restriction, ...],
        HTTP(
            "Reject requests to these APIs that lack the header KEY: VALUE. May be repeated. "
            f"APIs: {', '.join(compound.RESTRICTED_CATEGORIES)}.",
            parse=compound.restriction("http-restricted-api", "api"),
            metavar="API,...:KEY=VALUE",
        ),
    ] = ()
    http_use_ssl: Annotated[bool, HTTP("Serve HTTPS.", is_extension=True)] = False
    http_use_ssl_mutual: Annotated[
        bool, HTTP("Serve HTTPS and require a client certificate.", is_extension=True)
    ] = False
    http_server_cert: Annotated[
        str, HTTP("Server certificate, as PEM.", metavar="FILE", is_extension=True)
    ] = ""
    http_server_key: Annotated[
        str, HTTP("Private key of the server, as PEM.", metavar="FILE", is_extension=True)
    ] = ""
    http_root_cert: Annotated[
        str,
        HTTP("CA certificates for client certificates, as PEM.", metavar="FILE", is_extension=True),
    ] = ""
    http_max_connections: Annotated[
        int,
        HTTP(
            "Maximum number of open HTTP connections. Further connections get status 503.",
            parse=value.at_least(1, value.integer),
            is_extension=True,
        ),
    ] = 10_000
    http_max_header_count: Annotated[
        int,
        HTTP(
            "Maximum number of header fields in a request. Requests with more get status 431.",
            parse=value.at_least(1, value.integer),
            is_extension=True,
        ),
    ] = 100
    http_max_header_size: Annotated[
        int,
        HTTP(
            "Maximum size of a request line and its headers together. Larger requests get status "
            "431.",
            parse=value.at_least(256, value.integer),
            metavar="BYTES",
            is_extension=True,
        ),
    ] = 32 << 10
    http_request_timeout_secs: Annotated[
        float,
        HTTP(
            "Maximum time to receive a request, counted from its first byte, in seconds. A slower "
            "request gets status 408. The limit is extended while the body arrives at a reasonable "
            "rate.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 60.0
    http_keepalive_timeout_secs: Annotated[
        float,
        HTTP(
            "Close a connection after it has been idle for this many seconds.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 600.0
    http_write_timeout_secs: Annotated[
        float,
        HTTP(
            "Close a connection whose client reads nothing of a response for this many seconds.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 60.0

    allow_grpc: Annotated[bool, GRPC("Serve gRPC.")] = True
    grpc_address: Annotated[
        str,
        GRPC(
            "Address to listen on for gRPC.",
            metavar="ADDRESS",
            default_text="127.0.0.1; tritonserver: 0.0.0.0",
        ),
    ] = "127.0.0.1"
    grpc_port: Annotated[
        int,
        GRPC(
            "Port to listen on for gRPC. 0 selects a free port.", parse=value.port, metavar="PORT"
        ),
    ] = 8001
    reuse_grpc_port: Annotated[
        bool,
        GRPC("Allow several servers to listen on the same gRPC port. All of them must set this."),
    ] = False
    grpc_header_forward_pattern: Annotated[
        str,
        GRPC(
            "Forward metadata whose keys match this regular expression as request parameters.",
            parse=value.pattern,
            metavar="REGEX",
        ),
    ] = ""
    grpc_infer_thread_count: Annotated[
        int,
        GRPC(
            "Number of threads that handle gRPC inference requests, from 2 to 128.",
            parse=value.grpc_infer_thread_count,
        ),
    ] = 2
    grpc_infer_allocation_pool_size: Annotated[
        int, GRPC("Maximum number of request and response objects kept for reuse.")
    ] = 8
    grpc_max_response_pool_size: Annotated[
        int,
        GRPC(
            "Maximum number of response objects that one stream keeps for reuse.",
            default_text="unlimited",
        ),
    ] = value.INT32_MAX
    grpc_max_message_size: Annotated[
        int,
        GRPC(
            "Maximum size of a request message, before and after decompression. Larger messages "
            "get RESOURCE_EXHAUSTED.",
            parse=value.at_least(1024, value.integer),
            metavar="BYTES",
            is_extension=True,
        ),
    ] = value.INT32_MAX
    grpc_use_ssl: Annotated[bool, GRPC("Serve gRPC over TLS.")] = False
    grpc_use_ssl_mutual: Annotated[
        bool, GRPC("Serve gRPC over TLS and require a client certificate.")
    ] = False
    grpc_server_cert: Annotated[str, GRPC("Server certificate, as PEM.", metavar="FILE")] = ""
    grpc_server_key: Annotated[str, GRPC("Private key of the server, as PEM.", metavar="FILE")] = ""
    grpc_root_cert: Annotated[
        str, GRPC("CA certificates for client certificates, as PEM.", metavar="FILE")
    ] = ""
    grpc_infer_response_compression_level: Annotated[
        str,
        GRPC(
            "Compress inference responses for clients that accept compression.",
            parse=value.choice(
                "grpc_infer_response_compression_level", "none", "low", "medium", "high"
            ),
            metavar="none|low|medium|high",
        ),
    ] = "none"
    grpc_keepalive_time: Annotated[
        int,
        GRPC(
            "Send a ping to a client that has been silent for this long.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 7_200_000
    grpc_keepalive_timeout: Annotated[
        int,
        GRPC(
            "Close the connection if the client does not acknowledge that ping within this time.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 20_000
    grpc_keepalive_permit_without_calls: Annotated[
        bool, GRPC("Send these pings even while no call is in flight.")
    ] = False
    grpc_http2_max_pings_without_data: Annotated[
        int,
        GRPC(
            "Maximum number of pings to send in a row without sending data. 0 means no limit.",
            parse=count,
        ),
    ] = 2
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int,
        GRPC(
            "Minimum interval between pings from a client that has no calls. A ping that arrives "
            "sooner counts as a bad ping.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 300_000
    grpc_http2_max_ping_strikes: Annotated[
        int,
        GRPC(
            "Maximum number of bad pings before the connection is closed. 0 means no limit.",
            parse=count,
        ),
    ] = 2
    grpc_max_connection_age: Annotated[
        int,
        GRPC(
            "Close connections that are older than this. 0 means never.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 0
    grpc_max_connection_age_grace: Annotated[
        int,
        GRPC(
            "Maximum time for calls in flight on such a connection to finish. 0 means no limit.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 0
    grpc_request_timeout_secs: Annotated[
        float,
        GRPC(
            "Maximum time for a new connection to send its first request, and to receive a frame, "
            "headers or a message that has begun, in seconds. The call or the connection ends "
            "after it. The limit is extended while data arrives at a reasonable rate.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 60.0
    grpc_idle_timeout_secs: Annotated[
        float,
        GRPC(
            "Close a connection that has had no call for this many seconds. 0 means never.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 600.0
    grpc_stream_idle_timeout_secs: Annotated[
        float,
        GRPC(
            "End a ModelStreamInfer call that has had no request for this many seconds and waits "
            "for no response. 0 means never.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 3600.0
    grpc_write_timeout_secs: Annotated[
        float,
        GRPC(
            "Close a connection whose client reads nothing of its responses for this many seconds.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 300.0
    grpc_max_watches: Annotated[
        int,
        GRPC(
            "Maximum number of open Health.Watch calls, of which one connection may have 100. "
            "Further calls get RESOURCE_EXHAUSTED.",
            parse=count,
            is_extension=True,
        ),
    ] = 10_000
    grpc_restricted_protocol: Annotated[
        tuple[Restriction, ...],
        GRPC(
            "Reject calls to these protocols that lack the metadata KEY: VALUE. May be repeated. "
            f"Protocols: {', '.join(compound.RESTRICTED_CATEGORIES)}.",
            parse=compound.restriction("grpc-restricted-protocol", "protocol"),
            metavar="PROTOCOL,...:KEY=VALUE",
        ),
    ] = ()

    allow_sagemaker: Annotated[bool, SAGEMAKER("Serve SageMaker's routes.")] = False
    sagemaker_port: Annotated[
        int, SAGEMAKER("Port to listen on for SageMaker.", parse=value.port, metavar="PORT")
    ] = 8080
    sagemaker_safe_port_range: Annotated[
        PortRange | None,
        SAGEMAKER(
            "Ports that the endpoints other than SageMaker's may use.",
            parse=compound.port_range,
            metavar="LOW-HIGH",
        ),
    ] = None
    sagemaker_thread_count: Annotated[
        int, SAGEMAKER("Number of threads that handle SageMaker requests.")
    ] = 8

    allow_vertex_ai: Annotated[
        bool,
        VERTEX("Serve Vertex AI's routes.", default_text="true if AIP_MODE=PREDICTION, else false"),
    ] = False
    vertex_ai_port: Annotated[
        int,
        VERTEX(
            "Port to listen on for Vertex AI.",
            parse=value.port,
            metavar="PORT",
            default_text="AIP_HTTP_PORT, else 8080",
        ),
    ] = 8080
    vertex_ai_thread_count: Annotated[
        int, VERTEX("Number of threads that handle Vertex AI requests.")
    ] = 8
    vertex_ai_default_model: Annotated[
        str, VERTEX("Model for requests that do not name a model.", metavar="MODEL")
    ] = ""

    allow_metrics: Annotated[bool, METRICS("Serve Prometheus metrics.")] = True
    allow_gpu_metrics: Annotated[bool, METRICS("Export GPU metrics if there are GPUs.")] = True
    allow_cpu_metrics: Annotated[bool, METRICS("Export CPU load and memory of the host.")] = True
    metrics_address: Annotated[
        str,
        METRICS(
            "Address to listen on for metrics.",
            metavar="ADDRESS",
            default_text="the same as --http-address",
        ),
    ] = ""
    metrics_port: Annotated[
        int,
        METRICS(
            "Port to listen on for metrics. 0 selects a free port.",
            parse=value.port,
            metavar="PORT",
        ),
    ] = 8002
    metrics_interval_ms: Annotated[
        float,
        METRICS(
            "Interval between readings of host and GPU metrics.",
            parse=value.above_zero,
            metavar="MILLISECONDS",
        ),
    ] = 2000.0
    metrics_config: Annotated[
        tuple[MetricsSetting, ...],
        METRICS(
            "Latency metrics to export: counter_latencies=BOOL, histogram_latencies=BOOL, "
            "summary_latencies=BOOL or summary_quantiles=QUANTILE:ERROR,... May be repeated.",
            parse=compound.metrics_config,
            metavar="SETTING=VALUE",
        ),
    ] = ()

    trace_config: Annotated[
        tuple[TraceSetting, ...],
        TRACING(
            "Trace setting. Without MODE: level, rate, count or mode. With MODE triton: file or "
            "log-frequency. With MODE opentelemetry: url, resource, bsp_max_queue_size, "
            "bsp_schedule_delay or bsp_max_export_batch_size. May be repeated.",
            parse=compound.trace_config,
            metavar="[MODE,]SETTING=VALUE",
        ),
    ] = ()

    backend_directory: Annotated[
        str,
        BACKEND(
            "Directory of backends written in Python, as DIR/<backend>/model.py.",
            metavar="DIR",
        ),
    ] = "/opt/tritonserver/backends"
    backend_config: Annotated[
        tuple[BackendSetting, ...],
        BACKEND(
            "Setting of one backend, or of all backends if BACKEND is omitted. May be repeated.",
            parse=compound.backend_config,
            metavar="[BACKEND,]SETTING=VALUE",
        ),
    ] = ()

    repoagent_directory: Annotated[str, AGENT("Directory of repository agents.", metavar="DIR")] = (
        "/opt/tritonserver/repoagents"
    )

    cache_config: Annotated[
        tuple[CacheSetting, ...],
        CACHE(
            "Setting of the response cache, e.g. local,size=1048576. May be repeated.",
            parse=compound.cache_config,
            metavar="CACHE,SETTING=VALUE",
        ),
    ] = ()
    cache_directory: Annotated[str, CACHE("Directory of cache plug-ins.", metavar="DIR")] = (
        "/opt/tritonserver/caches"
    )

    rate_limit: Annotated[
        str,
        RATE(
            "off: an instance executes as soon as it is free. execution_count: an instance waits "
            "until its resources are free, and instances that have executed least go first.",
            parse=value.choice("rate-limit", "off", "execution_count"),
            metavar="off|execution_count",
        ),
    ] = "off"
    rate_limit_resource: Annotated[
        tuple[ResourceLimit, ...],
        RATE(
            "Amount of a resource on DEVICE, or on every device if DEVICE is omitted. May be "
            "repeated.",
            parse=compound.rate_limit_resource,
            metavar="NAME:COUNT[:DEVICE]",
            default_text="the largest amount that a model asks for",
        ),
    ] = ()

    request_memory_byte_size: Annotated[
        int,
        MEMORY(
            "Maximum number of bytes that the server holds for requests and responses, over all "
            "connections: received, decompressed, queued and unsent. One connection may hold as "
            "much as is left for all others. Further requests are refused with 503 or "
            "RESOURCE_EXHAUSTED, and with Retry-After.",
            parse=value.at_least(0, value.byte_count),
            metavar="BYTES",
            default_text="a quarter of the memory of the machine or the container",
            is_extension=True,
        ),
    ] = 0
    pinned_memory_pool_byte_size: Annotated[
        int, MEMORY("Size of the pinned memory pool.", parse=value.byte_count, metavar="BYTES")
    ] = 256 << 20
    cuda_memory_pool_byte_size: Annotated[
        tuple[DeviceBytes, ...],
        MEMORY(
            "Size of the memory pool of one GPU. May be repeated.",
            parse=compound.device_bytes,
            metavar="GPU:BYTES",
        ),
    ] = ()
    cuda_virtual_address_size: Annotated[
        tuple[DeviceBytes, ...],
        MEMORY(
            "Address space for implicit state on one GPU. May be repeated.",
            parse=compound.device_bytes,
            metavar="GPU:BYTES",
        ),
    ] = ()
    min_supported_compute_capability: Annotated[
        float, MEMORY("Do not use GPUs below this compute capability.")
    ] = 6.0
    buffer_manager_thread_count: Annotated[
        int, MEMORY("Number of threads that copy tensors.", parse=count)
    ] = 0
    host_policy: Annotated[
        tuple[HostPolicy, ...],
        MEMORY(
            "Setting of a host policy: numa-node=N or cpu-cores=0-3. An instance follows the "
            "policy that its instance group names, or else the policy of its kind: cpu, model, "
            "gpu_0, gpu_1, ... Frontend processes follow frontend_0, frontend_1, ..., or else "
            "frontend. May be repeated.",
            parse=compound.host_policy,
            metavar="NAME,SETTING=VALUE",
        ),
    ] = ()
    model_load_gpu_limit: Annotated[
        tuple[DeviceFraction, ...],
        MEMORY(
            "Reject a model with instances on this GPU if more than this fraction of the GPU's "
            "memory is in use once the model is loaded. Requires the extra gpu. May be repeated.",
            parse=compound.model_load_gpu_limit,
            metavar="GPU:FRACTION",
        ),
    ] = ()
    allow_client_shm: Annotated[bool, MEMORY("Allow clients to pass tensors in shared memory.")] = (
        False
    )

    api_key_file: Annotated[
        str,
        ACCESS(
            "Require an API key of this file, which `naiad key` writes. The file is read again "
            "when it changes.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""
    api_key: Annotated[
        tuple[str, ...],
        ACCESS(
            "Require this API key. It may do everything except manage keys. May be repeated. Other "
            "users of the machine see it in the list of processes: prefer the environment "
            "variable, or --api-key-file.",
            parse=value.secret,
            metavar="KEY",
            is_extension=True,
        ),
    ] = ()
    api_key_header: Annotated[
        tuple[str, ...],
        ACCESS(
            "Header, or gRPC metadata, that may also hold the API key, besides 'Authorization: "
            "Bearer' and 'x-api-key'. May be repeated.",
            parse=value.header_name,
            metavar="NAME",
            is_extension=True,
        ),
    ] = ()
    guarded_api: Annotated[
        tuple[str, ...],
        ACCESS(
            "Also require an API key for this API, which is open by default. May be repeated.",
            parse=value.choice("guarded-api", "health", "metrics"),
            metavar="health|metrics",
            is_extension=True,
        ),
    ] = ()
    jwt_jwks: Annotated[
        str,
        ACCESS(
            "Accept signed tokens (JWT) of an identity provider, whose public keys are in this "
            "file or at this https:// URL (a JSON Web Key Set). Requires the extra jwt, "
            "--jwt-issuer and --jwt-audience.",
            metavar="FILE|URL",
            is_extension=True,
        ),
    ] = ""
    jwt_issuer: Annotated[
        str,
        ACCESS(
            "Issuer that a token must name ('iss').",
            metavar="TEXT",
            is_extension=True,
        ),
    ] = ""
    jwt_audience: Annotated[
        tuple[str, ...],
        ACCESS(
            "Audience that a token must name ('aud'). May be repeated; a token needs one of them.",
            metavar="TEXT",
            is_extension=True,
        ),
    ] = ()
    jwt_claim: Annotated[
        tuple[ClaimSetting, ...],
        ACCESS(
            "Claim of a token that holds a field: subject, scopes, models, rpm, tpm, max_parallel, "
            "tokens_per_day, priority or metadata. E.g. rpm=https://example.com/rpm, or "
            "scopes=realm_access.roles. May be repeated.",
            parse=compound.jwt_claim,
            metavar="FIELD=CLAIM",
            is_extension=True,
        ),
    ] = ()
    jwt_scope_prefix: Annotated[
        str,
        ACCESS(
            "What a scope of a token begins with if it is a scope of Naiad, e.g. naiad:inference.",
            metavar="TEXT",
            is_extension=True,
        ),
    ] = "naiad:"
    jwt_default_scope: Annotated[
        tuple[str, ...],
        ACCESS(
            "Scope of a token that has no scope of Naiad. May be repeated. By default such a token "
            "may do nothing.",
            parse=value.choice("jwt-default-scope", *compound.SCOPES),
            metavar="SCOPE",
            is_extension=True,
        ),
    ] = ()
    jwt_leeway_secs: Annotated[
        float,
        ACCESS(
            "How far the clocks of the identity provider and this server may differ, in seconds.",
            parse=value.between(0, 600, value.real),
            is_extension=True,
        ),
    ] = 60.0
    jwt_refresh_secs: Annotated[
        float,
        ACCESS(
            "How often the URL of --jwt-jwks is fetched, in seconds. A token with an unknown key "
            "causes a fetch, too, at most every 30 seconds.",
            parse=value.at_least(10, value.real),
            is_extension=True,
        ),
    ] = 300.0
    audit_log: Annotated[
        str,
        ACCESS(
            "Write a JSON line to this file for each request that needs an API key: time, id of "
            "the key, address, API, model, status, tokens and milliseconds. SIGHUP opens the file "
            "again.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""
    allowed_host: Annotated[
        tuple[str, ...],
        ACCESS(
            "Name under which clients reach this server over HTTP. May be repeated; '*' allows any "
            "name. By default a server that listens on this machine only and has no API keys "
            "accepts its own name, addresses and names without a dot, so that no web page can "
            "reach it under a name of the page's own.",
            parse=value.host_name,
            metavar="NAME",
            is_extension=True,
        ),
    ] = ()
    trusted_proxy: Annotated[
        tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...],
        ACCESS(
            "Addresses of proxies in front of this server, which tell the addresses of their "
            "clients as X-Forwarded-For or Forwarded: an address or a network such as 10.0.0.0/8. "
            "May be repeated. The audit log and the limit of sign-ins then name the client.",
            parse=value.network,
            metavar="CIDR",
            is_extension=True,
        ),
    ] = ()
    cors_allow_origin: Annotated[
        tuple[str, ...],
        ACCESS(
            "Origin of pages that may use this server from a browser, e.g. "
            "https://app.example.com. May be repeated; '*' allows every page. By default no page "
            "of another origin may.",
            parse=value.origin,
            metavar="ORIGIN",
            is_extension=True,
        ),
    ] = ()
    allow_file_override: Annotated[
        str,
        ACCESS(
            "Let load requests bring files of the model ('file:' parameters) and any config, which "
            "may run code, and models be deployed in the console. Without it, a config may change "
            "counts, batching and queues only. auto allows it if the server requires "
            "API keys or listens on this machine only; without keys, nothing then comes through a "
            "proxy, and the console accepts models of the server's own user and of root only.",
            parse=value.choice("allow-file-override", "auto", "true", "false"),
            metavar="auto|true|false",
            default_text="auto; tritonserver: true",
            is_extension=True,
        ),
    ] = "auto"

    console: Annotated[
        str,
        ACCESS(
            "Serve the console, pages for people, at /console of the HTTP address. auto serves it "
            "if the address is this machine's only. Elsewhere it needs API keys.",
            parse=value.choice("console", "auto", "true", "false"),
            metavar="auto|true|false",
            is_extension=True,
        ),
    ] = "auto"

    console_max_upload_size: Annotated[
        int,
        ACCESS(
            "Bytes that the files of one model may have that is uploaded to the console. An upload"
            " also needs room on the disk of the repository.",
            parse=value.at_least(1, value.byte_count),
            metavar="BYTES",
            is_extension=True,
        ),
    ] = 17_179_869_184
    console_allow_pickle: Annotated[
        bool,
        ACCESS(
            "Let pickles be uploaded to the console: .pkl files, and what torch.save writes. To "
            "open one runs whatever code it contains.",
            is_extension=True,
        ),
    ] = False

    strict_model_config: Annotated[
        bool, DEPRECATED("Use --disable-auto-complete-config instead.")
    ] = False
    response_cache_byte_size: Annotated[
        int,
        DEPRECATED(
            "Use --cache-config=local,size=BYTES instead.", parse=value.byte_count, metavar="BYTES"
        ),
    ] = 0
    trace_file: Annotated[
        str, DEPRECATED("Use --trace-config triton,file=FILE instead.", metavar="FILE")
    ] = ""
    trace_level: Annotated[
        tuple[str, ...],
        DEPRECATED(
            "Use --trace-config level=LEVEL instead. May be repeated.",
            parse=value.trace_level,
            metavar="OFF|TIMESTAMPS|TENSORS",
        ),
    ] = ()
    trace_rate: Annotated[int, DEPRECATED("Use --trace-config rate=N instead.")] = 1000
    trace_count: Annotated[int, DEPRECATED("Use --trace-config count=N instead.")] = -1
    trace_log_frequency: Annotated[
        int, DEPRECATED("Use --trace-config triton,log-frequency=N instead.", parse=count)
    ] = 0

    def backend_settings(self, backend: str) -> dict[str, str]:
        """Returns the --backend-config settings of one backend.

        Settings for this backend override settings for all backends.
        """
        general = {entry.setting: entry.value for entry in self.backend_config if not entry.backend}
        return general | {
            entry.setting: entry.value for entry in self.backend_config if entry.backend == backend
        }
