"""Every option of the server, declared once: name (the flag is the same with dashes), type, group,
help, default.

The flags are Triton's, spelled as Triton spells them; those marked is_extension are ours. What is
accepted but does nothing yet is listed in naiad.settings.effect. The command line, the environment,
the config file and docs/settings.md derive from here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from naiad.settings import compound, value
from naiad.settings.compound import (
    BackendSetting,
    CacheSetting,
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
DEPRECATED = Group("DEPRECATED")

count = value.at_least(0, value.integer)
seconds = value.at_least(0, value.real)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, SERVER("Name of this server in /v2 and in the start-up table.")] = "triton"
    exit_timeout_secs: Annotated[
        int,
        SERVER(
            "At shutdown, how long to wait for requests in flight before the server exits anyway.",
            parse=count,
        ),
    ] = 30
    drain_delay_secs: Annotated[
        float,
        SERVER(
            "At shutdown, how long to go on accepting requests while already reported as not ready, so that load balancers notice.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 0.0
    busy_poll_us: Annotated[
        int,
        SERVER(
            "While requests come one at a time, how long the server stays awake for the next event instead of sleeping, in microseconds. "
            "Shortens the answers to a client that waits for each before it asks again, for the CPU of the waits. 0 turns it off.",
            parse=count,
            is_extension=True,
        ),
    ] = 200
    fast_paths: Annotated[
        bool,
        SERVER(
            "Let HTTP and gRPC inference requests that repeat an earlier request except for their "
            "data skip most of parsing and validation. Responses are the same either way; false "
            "helps to find out whether a problem lies there.",
            is_extension=True,
        ),
    ] = True
    config_file: Annotated[
        str,
        SERVER(
            "TOML file with options: each key is a flag without its dashes. The command line and the environment come first.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""

    log_verbose: Annotated[
        int,
        LOGGING("Verbose level: 0 is off, higher numbers tell more.", parse=value.verbose_level),
    ] = 0
    log_info: Annotated[bool, LOGGING("Write INFO lines.")] = True
    log_warning: Annotated[bool, LOGGING("Write WARNING lines.")] = True
    log_error: Annotated[bool, LOGGING("Write ERROR lines.")] = True
    log_format: Annotated[
        str,
        LOGGING(
            "How a line starts: 'default' is LMMDD hh:mm:ss.ssssss, 'ISO8601' is YYYY-MM-DDThh:mm:ssZ L (L is the severity).",
            parse=value.log_format,
            metavar="default|ISO8601",
        ),
    ] = "default"
    log_file: Annotated[
        str, LOGGING("Write the log to this file and not to the console.", metavar="FILE")
    ] = ""
    log_json: Annotated[
        bool, LOGGING("Write one JSON object per line, with request ids.", is_extension=True)
    ] = False

    model_repository: Annotated[
        tuple[str, ...],
        REPOSITORY(
            "Directory of models, or its URL: s3://, gs://, as://, hf://. May be repeated; a model that is in two of them is not served.",
            metavar="DIR",
            aliases=("model-store",),
        ),
    ] = ()
    repository_cache_directory: Annotated[
        str,
        REPOSITORY(
            "Where copies of remote repositories are kept.",
            metavar="DIR",
            default_words="~/.cache/naiad/repositories",
            is_extension=True,
        ),
    ] = ""
    model: Annotated[
        tuple[str, ...],
        REPOSITORY(
            "Serve this language model without a repository: a checkpoint folder, a .gguf file, a name of `naiad pull` or a hub id; "
            "NAME=CHECKPOINT names it. May be repeated.",
            metavar="CHECKPOINT",
            is_extension=True,
        ),
    ] = ()
    exit_on_error: Annotated[
        bool, REPOSITORY("Exit when a model cannot be loaded at start; false: serve the others.")
    ] = True
    disable_auto_complete_config: Annotated[
        bool,
        REPOSITORY(
            "Take config.pbtxt as it is: nothing that is missing is completed from the model.",
            is_switch=True,
        ),
    ] = False
    strict_readiness: Annotated[
        bool,
        REPOSITORY(
            "The server is ready only when all models are; false: as soon as it answers requests."
        ),
    ] = True
    model_control_mode: Annotated[
        str,
        REPOSITORY(
            "Which models are loaded, and when. none: all, at start. poll: all, and changes on disk are followed. "
            "explicit: those of --load-model, and then what the load and unload requests ask for.",
            parse=value.choice("model-control-mode", "none", "poll", "explicit"),
            metavar="none|poll|explicit",
        ),
    ] = "none"
    repository_poll_secs: Annotated[
        int, REPOSITORY("Time between two looks at the repository in poll mode.", parse=count)
    ] = 15
    load_model: Annotated[
        tuple[str, ...],
        REPOSITORY(
            "Model to load at start in explicit mode. May be repeated; '*' alone means all models.",
            metavar="MODEL",
        ),
    ] = ()
    model_config_name: Annotated[
        str,
        REPOSITORY(
            "Use configs/NAME.pbtxt of a model in place of its config.pbtxt, where there is one.",
            parse=value.model_config_name,
            metavar="NAME",
        ),
    ] = ""
    model_load_thread_count: Annotated[
        int,
        REPOSITORY(
            "How many models are loaded at the same time.", parse=value.at_least(1, value.integer)
        ),
    ] = 4
    model_load_retry_count: Annotated[
        int, REPOSITORY("How often a load that failed is tried again.", parse=count)
    ] = 0
    model_namespacing: Annotated[
        bool,
        REPOSITORY(
            "Serve models of the same name from different repositories, told apart by their namespace."
        ),
    ] = False
    enable_peer_access: Annotated[
        bool, REPOSITORY("Let GPUs read each other's memory directly.")
    ] = True

    worker_max_restarts: Annotated[
        int,
        WORKERS(
            "More deaths of a model's worker than this within --worker-restart-window-secs are a crash loop: "
            "the model is unavailable and retried only now and then.",
            parse=count,
            is_extension=True,
        ),
    ] = 5
    worker_restart_window_secs: Annotated[
        float,
        WORKERS(
            "The time in which restarts are counted for --worker-max-restarts.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 60.0
    default_execution_timeout_secs: Annotated[
        float,
        WORKERS(
            "Kill a worker whose execute takes longer than this, for models that set no limit of their own. 0: never.",
            parse=seconds,
            is_extension=True,
        ),
    ] = 0.0

    allow_http: Annotated[bool, HTTP("Serve HTTP.")] = True
    http_address: Annotated[
        str,
        HTTP(
            "Address to listen on for HTTP.",
            metavar="ADDRESS",
            default_words="127.0.0.1; tritonserver: 0.0.0.0",
        ),
    ] = "127.0.0.1"
    http_port: Annotated[
        int,
        HTTP("Port to listen on for HTTP; 0 takes a free one.", parse=value.port, metavar="PORT"),
    ] = 8000
    reuse_http_port: Annotated[
        bool, HTTP("Let several servers listen on the same HTTP port; all of them must set this.")
    ] = False
    http_header_forward_pattern: Annotated[
        str,
        HTTP(
            "Headers whose names match this regular expression become request parameters.",
            parse=value.pattern,
            metavar="REGEX",
        ),
    ] = ""
    http_thread_count: Annotated[int, HTTP("Threads that handle HTTP requests.")] = 8
    http_max_input_size: Annotated[
        int,
        HTTP(
            "Largest request body, in bytes, also after decompression.",
            parse=value.http_max_input_size,
            metavar="BYTES",
        ),
    ] = 64 << 20
    http_restricted_api: Annotated[
        tuple[Restriction, ...],
        HTTP(
            "Refuse requests to these APIs without the header KEY: VALUE. May be repeated. "
            f"APIs: {', '.join(compound.RESTRICTED_CATEGORIES)}.",
            parse=compound.restriction("http-restricted-api", "api"),
            metavar="API,...:KEY=VALUE",
        ),
    ] = ()
    http_use_ssl: Annotated[bool, HTTP("Serve HTTPS.", is_extension=True)] = False
    http_use_ssl_mutual: Annotated[
        bool, HTTP("Serve HTTPS and ask clients for a certificate.", is_extension=True)
    ] = False
    http_server_cert: Annotated[
        str, HTTP("Certificate of the server, PEM.", metavar="FILE", is_extension=True)
    ] = ""
    http_server_key: Annotated[
        str, HTTP("Private key of the server, PEM.", metavar="FILE", is_extension=True)
    ] = ""
    http_root_cert: Annotated[
        str, HTTP("Certificates that sign the clients', PEM.", metavar="FILE", is_extension=True)
    ] = ""
    http_max_connections: Annotated[
        int,
        HTTP(
            "Open HTTP connections; further ones are answered 503.",
            parse=value.at_least(1, value.integer),
            is_extension=True,
        ),
    ] = 10_000
    http_max_header_count: Annotated[
        int,
        HTTP(
            "Header fields of one request; more are answered 431.",
            parse=value.at_least(1, value.integer),
            is_extension=True,
        ),
    ] = 100
    http_max_header_size: Annotated[
        int,
        HTTP(
            "Bytes of a request's first line and headers together; more are answered 431.",
            parse=value.at_least(256, value.integer),
            metavar="BYTES",
            is_extension=True,
        ),
    ] = 32 << 10
    http_request_timeout_secs: Annotated[
        float,
        HTTP(
            "Time to receive a request, from its first byte on, else 408; a body that keeps coming at a fair rate gets more.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 60.0
    http_keepalive_timeout_secs: Annotated[
        float,
        HTTP(
            "An idle connection is closed after this time.",
            parse=value.above_zero,
            is_extension=True,
        ),
    ] = 600.0

    allow_grpc: Annotated[bool, GRPC("Serve gRPC.")] = True
    grpc_address: Annotated[
        str,
        GRPC(
            "Address to listen on for gRPC.",
            metavar="ADDRESS",
            default_words="127.0.0.1; tritonserver: 0.0.0.0",
        ),
    ] = "127.0.0.1"
    grpc_port: Annotated[
        int,
        GRPC("Port to listen on for gRPC; 0 takes a free one.", parse=value.port, metavar="PORT"),
    ] = 8001
    reuse_grpc_port: Annotated[
        bool, GRPC("Let several servers listen on the same gRPC port; all of them must set this.")
    ] = False
    grpc_header_forward_pattern: Annotated[
        str,
        GRPC(
            "Metadata whose keys match this regular expression becomes request parameters.",
            parse=value.pattern,
            metavar="REGEX",
        ),
    ] = ""
    grpc_infer_thread_count: Annotated[
        int,
        GRPC(
            "Threads that handle gRPC inference requests, 2 to 128.",
            parse=value.grpc_infer_thread_count,
        ),
    ] = 2
    grpc_infer_allocation_pool_size: Annotated[
        int, GRPC("Request and response objects kept for reuse.")
    ] = 8
    grpc_max_response_pool_size: Annotated[
        int, GRPC("Response objects kept for reuse by one stream.", default_words="unlimited")
    ] = value.INT32_MAX
    grpc_use_ssl: Annotated[bool, GRPC("Serve gRPC over TLS.")] = False
    grpc_use_ssl_mutual: Annotated[
        bool, GRPC("Serve gRPC over TLS and ask clients for a certificate.")
    ] = False
    grpc_server_cert: Annotated[str, GRPC("Certificate of the server, PEM.", metavar="FILE")] = ""
    grpc_server_key: Annotated[str, GRPC("Private key of the server, PEM.", metavar="FILE")] = ""
    grpc_root_cert: Annotated[
        str, GRPC("Certificates that sign the clients', PEM.", metavar="FILE")
    ] = ""
    grpc_infer_response_compression_level: Annotated[
        str,
        GRPC(
            "Compress inference responses for clients that can read them.",
            parse=value.choice(
                "grpc_infer_response_compression_level", "none", "low", "medium", "high"
            ),
            metavar="none|low|medium|high",
        ),
    ] = "none"
    grpc_keepalive_time: Annotated[
        int,
        GRPC(
            "Ping a client that has been silent for this long.", parse=count, metavar="MILLISECONDS"
        ),
    ] = 7_200_000
    grpc_keepalive_timeout: Annotated[
        int,
        GRPC(
            "Close the connection when that ping is not answered within this time.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 20_000
    grpc_keepalive_permit_without_calls: Annotated[
        bool, GRPC("Ping also when no call is in flight.")
    ] = False
    grpc_http2_max_pings_without_data: Annotated[
        int,
        GRPC("Pings sent in a row while there is nothing else to send; 0: no limit.", parse=count),
    ] = 2
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int,
        GRPC(
            "Pings from a client without calls that come faster than this are bad pings.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 300_000
    grpc_http2_max_ping_strikes: Annotated[
        int, GRPC("Bad pings after which a connection is closed; 0: no limit.", parse=count)
    ] = 2
    grpc_max_connection_age: Annotated[
        int,
        GRPC(
            "Close connections that are older than this; 0: never.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 0
    grpc_max_connection_age_grace: Annotated[
        int,
        GRPC(
            "How long calls of such a connection may still take; 0: as long as they need.",
            parse=count,
            metavar="MILLISECONDS",
        ),
    ] = 0
    grpc_restricted_protocol: Annotated[
        tuple[Restriction, ...],
        GRPC(
            "Refuse calls to these protocols without the metadata KEY: VALUE. May be repeated. "
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
            "Ports that the other endpoints may use beside SageMaker.",
            parse=compound.port_range,
            metavar="LOW-HIGH",
        ),
    ] = None
    sagemaker_thread_count: Annotated[int, SAGEMAKER("Threads that handle SageMaker requests.")] = 8

    allow_vertex_ai: Annotated[
        bool,
        VERTEX(
            "Serve Vertex AI's routes.", default_words="true if AIP_MODE=PREDICTION, else false"
        ),
    ] = False
    vertex_ai_port: Annotated[
        int,
        VERTEX(
            "Port to listen on for Vertex AI.",
            parse=value.port,
            metavar="PORT",
            default_words="AIP_HTTP_PORT, else 8080",
        ),
    ] = 8080
    vertex_ai_thread_count: Annotated[int, VERTEX("Threads that handle Vertex AI requests.")] = 8
    vertex_ai_default_model: Annotated[
        str, VERTEX("Model for requests that name none.", metavar="MODEL")
    ] = ""

    allow_metrics: Annotated[bool, METRICS("Serve Prometheus metrics.")] = True
    allow_gpu_metrics: Annotated[bool, METRICS("Show GPU metrics, where there are GPUs.")] = True
    allow_cpu_metrics: Annotated[bool, METRICS("Show the load and memory of the host.")] = True
    metrics_address: Annotated[
        str,
        METRICS(
            "Address to listen on for metrics.",
            metavar="ADDRESS",
            default_words="the same as --http-address",
        ),
    ] = ""
    metrics_port: Annotated[
        int,
        METRICS(
            "Port to listen on for metrics; 0 takes a free one.", parse=value.port, metavar="PORT"
        ),
    ] = 8002
    metrics_interval_ms: Annotated[
        float,
        METRICS(
            "How often host and GPU readings are taken.",
            parse=value.above_zero,
            metavar="MILLISECONDS",
        ),
    ] = 2000.0
    metrics_config: Annotated[
        tuple[MetricsSetting, ...],
        METRICS(
            "counter_latencies=BOOL, histogram_latencies=BOOL, summary_latencies=BOOL or summary_quantiles=QUANTILE:ERROR,... "
            "May be repeated.",
            parse=compound.metrics_config,
            metavar="SETTING=VALUE",
        ),
    ] = ()

    trace_config: Annotated[
        tuple[TraceSetting, ...],
        TRACING(
            "Trace settings: level, rate, count and mode, or those of one mode (triton: file, log-frequency; opentelemetry: url, "
            "resource, bsp_max_queue_size, bsp_schedule_delay, bsp_max_export_batch_size). May be repeated.",
            parse=compound.trace_config,
            metavar="[MODE,]SETTING=VALUE",
        ),
    ] = ()

    backend_directory: Annotated[
        str,
        BACKEND(
            "Where backends written in Python are looked for: DIR/<backend>/model.py.",
            metavar="DIR",
        ),
    ] = "/opt/tritonserver/backends"
    backend_config: Annotated[
        tuple[BackendSetting, ...],
        BACKEND(
            "Setting of one backend, or of all. May be repeated.",
            parse=compound.backend_config,
            metavar="[BACKEND,]SETTING=VALUE",
        ),
    ] = ()

    repoagent_directory: Annotated[
        str, AGENT("Where repository agents are looked for.", metavar="DIR")
    ] = "/opt/tritonserver/repoagents"

    cache_config: Annotated[
        tuple[CacheSetting, ...],
        CACHE("Setting of the response cache, e.g. local,size=1048576. May be repeated.", parse=compound.cache_config,
              metavar="CACHE,SETTING=VALUE"),
    ] = ()  # fmt: skip
    cache_directory: Annotated[str, CACHE("Where caches are looked for.", metavar="DIR")] = (
        "/opt/tritonserver/caches"
    )

    rate_limit: Annotated[
        str,
        RATE(
            "off: an instance runs as soon as it is free. execution_count: when its resources are, least used first.",
            parse=value.choice("rate-limit", "off", "execution_count"),
            metavar="off|execution_count",
        ),
    ] = "off"
    rate_limit_resource: Annotated[
        tuple[ResourceLimit, ...],
        RATE(
            "How much there is of a resource, on every device or on one. May be repeated.",
            parse=compound.rate_limit_resource,
            metavar="NAME:COUNT[:DEVICE]",
            default_words="as much as the largest model asks for",
        ),
    ] = ()

    pinned_memory_pool_byte_size: Annotated[
        int, MEMORY("Size of the pool of pinned memory.", parse=value.byte_count, metavar="BYTES")
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
        float, MEMORY("GPUs below this compute capability are not used.")
    ] = 6.0
    buffer_manager_thread_count: Annotated[
        int, MEMORY("Threads that copy tensors.", parse=count)
    ] = 0
    host_policy: Annotated[
        tuple[HostPolicy, ...],
        MEMORY(
            "numa-node=N or cpu-cores=0-3 of a named policy. An instance follows the one that its group names, or that of its kind: "
            "cpu, model, gpu_0, gpu_1, ... May be repeated.",
            parse=compound.host_policy,
            metavar="NAME,SETTING=VALUE",
        ),
    ] = ()
    model_load_gpu_limit: Annotated[
        tuple[DeviceFraction, ...],
        MEMORY(
            "Refuse a model with instances on this GPU when, once it is loaded, more than this fraction of the GPU's memory is in use. "
            "Needs naiad[gpu]. May be repeated.",
            parse=compound.model_load_gpu_limit,
            metavar="GPU:FRACTION",
        ),
    ] = ()
    allow_client_shm: Annotated[bool, MEMORY("Let clients pass tensors in shared memory.")] = False

    strict_model_config: Annotated[bool, DEPRECATED("true is --disable-auto-complete-config.")] = (
        False
    )
    response_cache_byte_size: Annotated[
        int,
        DEPRECATED("N is --cache-config=local,size=N.", parse=value.byte_count, metavar="BYTES"),
    ] = 0
    trace_file: Annotated[
        str, DEPRECATED("FILE is --trace-config triton,file=FILE.", metavar="FILE")
    ] = ""
    trace_level: Annotated[
        tuple[str, ...],
        DEPRECATED(
            "LEVEL is --trace-config level=LEVEL. May be repeated.",
            parse=value.trace_level,
            metavar="OFF|TIMESTAMPS|TENSORS",
        ),
    ] = ()
    trace_rate: Annotated[int, DEPRECATED("N is --trace-config rate=N.")] = 1000
    trace_count: Annotated[int, DEPRECATED("N is --trace-config count=N.")] = -1
    trace_log_frequency: Annotated[
        int, DEPRECATED("N is --trace-config triton,log-frequency=N.", parse=count)
    ] = 0

    def backend_settings(self, backend: str) -> dict[str, str]:
        """What --backend-config says for one backend; its own settings win over those for all."""
        general = {entry.setting: entry.value for entry in self.backend_config if not entry.backend}
        return general | {
            entry.setting: entry.value for entry in self.backend_config if entry.backend == backend
        }
