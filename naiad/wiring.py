"""Turns the settings into the options of each part of the server, and builds the parts.

Nothing is started here: server.py does that.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from naiad import __version__
from naiad.console.console import PAGES, Console, ConsoleOptions
from naiad.console.measure.routes import Addresses
from naiad.console.sessions import SessionOptions
from naiad.core.clock import Clock, LoopClock
from naiad.core.identity import Identity
from naiad.core.install_advice import install_command
from naiad.core.installed_backends import installed_backends
from naiad.core.job import Job
from naiad.core.memory_budget import MemoryBudget
from naiad.core.model_spec import ServerMetadata
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.errors import Code, NaiadError, internal, unsupported
from naiad.files.console_link import abandoned_token
from naiad.frontend_process.automatic import automatic_count
from naiad.frontend_process.frontends import Frontends
from naiad.frontend_process.launcher import LauncherProcess, start_launcher
from naiad.frontend_process.options import FrontendOptions, KeyOptions
from naiad.frontends.http.options import HttpOptions, Restriction
from naiad.frontends.token_estimate import estimate_tokens, is_language
from naiad.inference import InferenceCore, ReserveTokens
from naiad.instances.busy_poll import BusyPoll, has_spare_cpu
from naiad.instances.confinement import confinement
from naiad.instances.devices import gpu_ids
from naiad.instances.lease import LeaseNumbers
from naiad.instances.restart import RestartPolicy
from naiad.instances.template_process import Templates, WorkerSetup
from naiad.ipc.work import ControlOperation
from naiad.keys.account import Accounts
from naiad.keys.audit import AuditLog
from naiad.keys.audit_trail import AuditTrail
from naiad.keys.forwarded import TrustedProxies
from naiad.keys.guard import Guard
from naiad.keys.key_file import KeyFile
from naiad.keys.key_table import KeyTable
from naiad.keys.key_watch import KeyWatch
from naiad.keys.keys import Keys
from naiad.keys.local_gate import LocalGuard
from naiad.keys.token.claims import ClaimNames, TokenRules
from naiad.keys.token.key_set_watch import KeySetWatch, check_location
from naiad.keys.usage_file import UsageFile, usage_path
from naiad.machine.cpus import largest_node_cpus, usable_cpus
from naiad.machine.memory import machine_memory_bytes
from naiad.machine.process_secrets import hide_arguments, hide_variables
from naiad.machine.worker_environment import is_secret, worker_environment
from naiad.metrics.cache_metrics import CacheReading
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.key_metrics import KeyCounts, KeyReading
from naiad.metrics.model_metrics import ModelSeries
from naiad.metrics.operation import MetricOperation
from naiad.repository.check.layout import layout_hints
from naiad.repository.config.config import ConfigOptions
from naiad.repository.deploy.deployer import Deployer
from naiad.repository.deploy.draft import DraftLimits
from naiad.repository.deploy.preview import ProcessOffer
from naiad.repository.environment.python_environment import PythonEnvironments, default_cache
from naiad.repository.load.gpu_limit import GpuLimits
from naiad.repository.load.host_policies import HostPolicies
from naiad.repository.load.loader import Loader, LoadOptions
from naiad.repository.load.reload import ReloadOptions
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSources
from naiad.repository.repository import Repository, RepositoryOptions
from naiad.repository.store import LocalStore, Store
from naiad.scheduling.cache.build_cache import REDIS_PASSWORD, REDIS_USER, build_cache
from naiad.scheduling.cache.cache import ResponseCache
from naiad.scheduling.cache.local_cache import LocalCache
from naiad.scheduling.ensemble.relay import Find
from naiad.scheduling.rate_limiter import RateLimiter
from naiad.scheduling.start_delay import read_start_delay
from naiad.settings import Settings, latency_metrics
from naiad.settings.exposure import has_console, has_keys, is_loopback, open_addresses
from naiad.shm.cuda_proxy import CudaProxy
from naiad.shm.cuda_region import open_cuda_region
from naiad.shm.region_table import RegionTable
from naiad.stores.credentials import CREDENTIAL_FILE, SECRET_VARIABLES
from naiad.stores.location import is_remote, parse_location
from naiad.stores.open_store import open_store
from naiad.trace.trace_options import OPENTELEMETRY, read_trace_options
from naiad.trace.tracing import Tracing
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.tls import HTTP1, HTTP2, TlsFiles

if TYPE_CHECKING:
    from naiad.keys.token.verifier import TokenVerifier

EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]
"""The extensions that `/v2` lists.

perf_analyzer looks for `statistics`; clients look for others before they use them.
"""

MIN_BUDGET_BYTES = 256 * 1024 * 1024
"""The least that the default of --request-memory-byte-size is."""


def http_options(settings: Settings) -> HttpOptions:
    return HttpOptions(
        max_input_size=settings.http_max_input_size,
        max_json_size=settings.http_max_json_size,
        header_forward_pattern=settings.http_header_forward_pattern,
        restricted_apis={
            category: Restriction(restriction.key, restriction.value)
            for restriction in settings.http_restricted_api
            for category in restriction.categories
        },
        fast_paths=settings.fast_paths,
        allowed_hosts=allowed_hosts(settings),
        allowed_origins=frozenset(settings.cors_allow_origin),
        limits=Http1Limits(
            max_connections=settings.http_max_connections,
            max_headers=settings.http_max_header_count,
            max_head_bytes=settings.http_max_header_size,
            receive_timeout_s=settings.http_request_timeout_secs,
            keep_alive_timeout_s=settings.http_keepalive_timeout_secs,
            write_timeout_s=settings.http_write_timeout_secs,
        ),
    )


def grpc_options(settings: Settings) -> GrpcOptions:
    return GrpcOptions(
        keepalive_time_ms=settings.grpc_keepalive_time,
        keepalive_timeout_ms=settings.grpc_keepalive_timeout,
        keepalive_permit_without_calls=settings.grpc_keepalive_permit_without_calls,
        max_pings_without_data=settings.grpc_http2_max_pings_without_data,
        min_recv_ping_interval_without_data_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
        max_ping_strikes=settings.grpc_http2_max_ping_strikes,
        max_connection_age_ms=settings.grpc_max_connection_age,
        max_connection_age_grace_ms=settings.grpc_max_connection_age_grace,
        request_timeout_s=settings.grpc_request_timeout_secs,
        idle_timeout_s=settings.grpc_idle_timeout_secs,
        stream_idle_timeout_s=settings.grpc_stream_idle_timeout_secs,
        write_timeout_s=settings.grpc_write_timeout_secs,
        max_watches=settings.grpc_max_watches,
        max_message_bytes=settings.grpc_max_message_size,
        fast_paths=settings.fast_paths,
        infer_response_compression_level=settings.grpc_infer_response_compression_level,
        header_forward_pattern=settings.grpc_header_forward_pattern,
        restricted_protocols={
            category: (restriction.key, restriction.value)
            for restriction in settings.grpc_restricted_protocol
            for category in restriction.categories
        },
    )


def allowed_hosts(settings: Settings) -> frozenset[str] | None:
    """The names that `Host` may have; None where it is not checked. A page cannot have an API key,
    and a server that other machines reach may have any name."""
    is_private = is_loopback(settings.http_address) and not has_keys(settings)
    return frozenset(settings.allowed_host) if settings.allowed_host or is_private else None


def are_files_allowed(settings: Settings) -> bool:
    if settings.allow_file_override == "auto":
        return has_keys(settings) or not open_addresses(settings)
    return settings.allow_file_override == "true"


def is_only_local(settings: Settings) -> bool:
    """Code comes from the server's own user on this machine only."""
    return not has_keys(settings) and settings.allow_file_override != "true"


def build_keys(settings: Settings) -> Keys | None:
    """Returns None where nobody needs an API key. Raises NaiadError for a key file that cannot be
    read."""
    if not has_keys(settings):
        return None
    table = KeyTable(settings.api_key)
    watch = KeyWatch(KeyFile(Path(settings.api_key_file)), table) if settings.api_key_file else None
    if watch is not None:
        watch.load()
    audit = AuditLog(Path(settings.audit_log)) if settings.audit_log else None
    trail = None if audit is None else AuditTrail(audit)
    if audit is not None:
        audit.start()
    accounts = Accounts(on_end=None if trail is None else trail.on_end)
    usage = None
    if settings.api_key_file:
        usage = UsageFile(usage_path(Path(settings.api_key_file)), accounts, time.time)
        usage.load()
    guard = Guard(
        table,
        headers=settings.api_key_header,
        guarded_apis=frozenset(settings.guarded_api),
        accounts=accounts,
        on_refused=None if trail is None else trail.on_refused,
        proxies=TrustedProxies(settings.trusted_proxy),
    )
    return Keys(guard, watch, usage, audit, _build_key_set(settings, table))


def token_reservation(keys: Keys) -> ReserveTokens:
    """Tokens of a language model count towards the limits of the key also if the model is called by
    another one, or is a step of an ensemble. They are not settled, as for any request of Triton's
    protocol."""
    accounts = keys.guard.accounts

    def reserve(request: InferRequest, identity: Identity, model: Model) -> None:
        if identity.limits.has_tokens and is_language(model):
            accounts.of(identity).reserve(estimate_tokens(request))

    return reserve


def _build_key_set(settings: Settings, table: KeyTable) -> KeySetWatch | None:
    """Returns None where no identity provider is configured. Raises NaiadError."""
    if not settings.jwt_jwks:
        return None
    check_location(settings.jwt_jwks)
    verifier = _build_verifier(settings)
    watch = KeySetWatch(settings.jwt_jwks, verifier.replace, refresh_s=settings.jwt_refresh_secs)
    verifier.on_change = table.change
    verifier.on_unknown_key = watch.on_unknown_key
    table.find_token = verifier.find
    watch.load()
    return watch


def _build_verifier(settings: Settings) -> TokenVerifier:
    """Raises NaiadError."""
    try:
        from naiad.keys.token.verifier import TokenVerifier
    except ImportError as error:
        raise unsupported(
            f"--jwt-jwks needs the extra 'jwt' ({install_command('jwt')}): {error}"
        ) from error
    names: dict[str, tuple[str, ...]] = {}
    for entry in settings.jwt_claim:
        names[entry.field] = (*names.get(entry.field, ()), entry.claim)
    return TokenVerifier(
        TokenRules(
            settings.jwt_issuer,
            settings.jwt_audience,
            settings.jwt_leeway_secs,
            ClaimNames(**names),
            settings.jwt_scope_prefix,
            settings.jwt_default_scope,
        )
    )


def build_console(
    settings: Settings, core: InferenceCore, custom: CustomMetrics, keys: Keys | None
) -> Console | None:
    """Returns None where the console is switched off."""
    if not has_console(settings):
        return None
    return Console(
        core.repository,
        core.is_ready,
        custom.values,
        None if keys is None else keys.guard,
        ConsoleOptions(
            session=SessionOptions(
                pages=PAGES,
                has_key_file=keys is not None and keys.watch is not None,
                is_tls=settings.http_use_ssl or settings.http_use_ssl_mutual,
                control_mode=settings.model_control_mode,
                grpc_port=settings.grpc_port if settings.allow_grpc else 0,
                server_name=settings.id,
            ),
            addresses=_own_addresses(settings),
            local=None
            if keys is not None
            else LocalGuard(
                only_own_user=is_only_local(settings), token=abandoned_token(settings.http_port)
            ),
        ),
        core.tracing,
        Deployer(
            core.repository.local_folders(),
            config_options(settings),
            DraftLimits(settings.console_max_upload_size, settings.console_allow_pickle),
            _model_variables(settings, os.environ),
            _process_offer(settings),
        )
        if are_files_allowed(settings)
        else None,
    )


def _own_addresses(settings: Settings) -> Addresses:
    """How a process on this machine reaches the server."""

    def host(address: str) -> str:
        if address in ("", "0.0.0.0", "::"):
            return "127.0.0.1"
        return f"[{address}]" if ":" in address else address

    is_tls = settings.http_use_ssl or settings.http_use_ssl_mutual
    scheme = "https" if is_tls else "http"
    return Addresses(
        f"{scheme}://{host(settings.http_address)}:{settings.http_port}",
        f"{host(settings.grpc_address)}:{settings.grpc_port}" if settings.allow_grpc else "",
        is_tls,
    )


def load_options(settings: Settings) -> LoadOptions:
    backend_config: dict[str, dict[str, str]] = {}
    for entry in settings.backend_config:
        backend_config.setdefault(entry.backend, {})[entry.setting] = entry.value
    directory = Path(settings.backend_directory)
    return LoadOptions(
        backend_config=backend_config,
        backend_directory=directory if directory.is_dir() else None,
        execution_timeout_s=settings.default_execution_timeout_secs,
        max_queue_size=settings.max_queue_size,
        max_queue_wait_s=settings.max_queue_wait_secs if settings.max_queue_size else 0.0,
        load_timeout_s=settings.model_load_timeout_secs,
        restarts=RestartPolicy(
            max_restarts=settings.worker_max_restarts,
            window_s=settings.worker_restart_window_secs,
            wait_s=settings.worker_restart_wait_secs,
        ),
        latency=latency_metrics(settings.metrics_config),
        host_policies=HostPolicies(settings.host_policy),
        gpu_limits=GpuLimits(settings.model_load_gpu_limit),
        environments=python_environments(settings),
        start_delay=read_start_delay(os.environ),
        max_instances=settings.max_model_instances,
        keeps_encoded=num_frontends(settings) > 1,
    )


def secret_variables(settings: Settings) -> frozenset[str]:
    """The names of environment variables from which the server itself gets credentials. Variables
    that begin with NAIAD_ are secret without being listed."""
    schemes = {parse_location(url).scheme for url in settings.model_repository if is_remote(url)}
    names = {name for scheme in schemes for name in SECRET_VARIABLES[scheme]}
    return frozenset({CREDENTIAL_FILE, REDIS_USER, REDIS_PASSWORD, *names})


def hide_secrets(settings: Settings) -> None:
    """Hides the server's secrets from what other processes can read about it in /proc."""
    secrets = secret_variables(settings)
    hide_variables([name for name in os.environ if is_secret(name, secrets)])
    restrictions = (*settings.http_restricted_api, *settings.grpc_restricted_protocol)
    hide_arguments(restriction.value for restriction in restrictions)
    hide_arguments(settings.api_key)
    hide_arguments(entry.value for entry in settings.cache_config if entry.setting == "password")


def worker_setup(settings: Settings, environ: Mapping[str, str]) -> WorkerSetup:
    """Raises NaiadError if the server cannot run workers as the user that the settings name."""
    return WorkerSetup(
        _model_variables(settings, environ),
        confinement(
            settings.worker_user, settings.worker_memory_limit, settings.worker_process_limit
        ),
    )


def _model_variables(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    return worker_environment(environ, settings.worker_environment, secret_variables(settings))


def python_environments(settings: Settings) -> PythonEnvironments:
    """Reads `--backend-config=python,environment-directory=DIR`."""
    directory = settings.backend_settings("python").get("environment-directory")
    return PythonEnvironments(
        Path(directory) if directory else default_cache(),
        _model_variables(settings, os.environ),
        should_install=_should_install(settings),
    )


def _should_install(settings: Settings) -> bool:
    """Reads `--backend-config=python,install-requirements=false`."""
    text = settings.backend_settings("python").get("install-requirements", "true")
    return text.lower() not in ("false", "off", "no", "0")


def _process_offer(settings: Settings) -> ProcessOffer:
    return ProcessOffer(
        num_cores=usable_cpus(),
        memory_bytes=machine_memory_bytes(),
        can_install=_should_install(settings),
        can_set_variables=not settings.worker_user,
    )


def folder_backends(directory: Path) -> frozenset[str]:
    """Returns the names of the backends in `--backend-directory` that consist of a model.py."""
    try:
        return frozenset(path.name for path in directory.iterdir() if (path / "model.py").is_file())
    except OSError:
        return frozenset()


class ModelServices:
    """What models may ask of the server (naiad.instances.services.Services), and what the loader
    needs for ensembles."""

    core: InferenceCore
    """Set when the core is built, which happens before any model is loaded."""

    def __init__(
        self,
        custom: CustomMetrics,
        busy_poll: BusyPoll | None,
        lease_numbers: LeaseNumbers | None,
        *,
        is_relay_enabled: bool,
    ) -> None:
        self._custom = custom
        self.busy_poll = busy_poll
        self.lease_numbers = lease_numbers
        self._is_relay_enabled = is_relay_enabled

    def infer(self, job: Job) -> ResponseStream:
        return self.core.call(job)

    def break_sequence(self, request: InferRequest) -> None:
        self.core.break_sequence(request)

    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        return self.core.model(model_name, model_version).spec.is_decoupled

    def apply_metric(self, owner: str, operation: MetricOperation) -> float:
        return self._custom.apply(owner, operation)

    def drop_metrics(self, owner: str) -> None:
        self._custom.drop_owner(owner)

    async def control(self, owner: str, operation: ControlOperation) -> bool:
        return await _control(self.core, owner, operation)

    @property
    def find(self) -> Find | None:
        return self._find if self._is_relay_enabled else None

    def _find(self, model_name: str, model_version: str) -> Model:
        return self.core.model(model_name, model_version)


def model_services(settings: Settings, clock: Clock, custom: CustomMetrics) -> ModelServices:
    busy_poll = (
        BusyPoll(clock, settings.busy_poll_us * 1000)
        if settings.busy_poll_us and has_spare_cpu()
        else None
    )
    return ModelServices(
        custom,
        busy_poll,
        LeaseNumbers() if settings.direct_calls else None,
        is_relay_enabled=settings.ensemble_relay,
    )


def config_options(settings: Settings) -> ConfigOptions:
    return ConfigOptions(
        is_auto_complete_enabled=not (
            settings.disable_auto_complete_config or settings.strict_model_config
        ),
        config_name=settings.model_config_name,
        gpus=gpu_ids(),
        min_compute_capability=settings.min_supported_compute_capability,
        other_backends=frozenset(installed_backends())
        | folder_backends(Path(settings.backend_directory)),
    )


def build_core(
    settings: Settings,
    loop: asyncio.AbstractEventLoop,
    templates: Templates,
    custom: CustomMetrics,
    budget: MemoryBudget | None = None,
) -> InferenceCore:
    """`budget` is one that other processes share. Raises NaiadError if a repository cannot be used
    at all, or an option is invalid."""
    options = config_options(settings)
    clock = LoopClock(loop)
    services = model_services(settings, clock, custom)
    cache = _cache(settings, clock)
    loader = Loader(
        clock, templates, services, load_options(settings), _rate_limiter(settings, clock), cache
    )
    stores = [_store(repository, settings) for repository in settings.model_repository]
    sources = ModelSources(stores, options, is_namespacing=settings.model_namespacing)
    repository = Repository(
        sources,
        loader,
        RepositoryOptions(
            is_explicit=settings.model_control_mode == "explicit",
            startup_models=list(settings.load_model),
            poll_interval_s=settings.repository_poll_secs
            if settings.model_control_mode == "poll"
            else 0,
            reloads=ReloadOptions(
                settings.model_load_thread_count, settings.model_load_retry_count
            ),
        ),
    )
    core = InferenceCore(
        repository,
        ServerMetadata(settings.id, __version__, EXTENSIONS),
        strict_readiness=settings.strict_readiness,
        regions=RegionTable(
            is_allowed=settings.allow_client_shm,
            open_cuda=partial(open_cuda_region, CudaProxy()) if options.gpus else None,
        ),
        tracing=build_tracing(settings),
        cache=cache,
        are_files_allowed=are_files_allowed(settings),
        are_files_local=is_only_local(settings),
        budget=budget or MemoryBudget(memory_bytes(settings)),
    )
    services.core = core
    return core


def memory_bytes(settings: Settings) -> int:
    """The budget for requests and responses. A quarter of the memory leaves the rest to the
    workers, which hold the models."""
    return settings.request_memory_byte_size or max(machine_memory_bytes() // 4, MIN_BUDGET_BYTES)


def num_frontends(settings: Settings) -> int:
    """The number of frontend processes; 1 means that the server process serves alone."""
    num_cpus = min(usable_cpus(), largest_node_cpus())
    limits = [max(settings.http_thread_count, 1)]
    if cores := HostPolicies(settings.host_policy).frontend_cores:
        limits.append(len(cores))
    return settings.frontend_processes or min(automatic_count(num_cpus), *limits)


def start_frontend_launcher(settings: Settings) -> LauncherProcess | None:
    """Returns None where the server process serves alone. Must be called before the event loop
    starts."""
    count = num_frontends(settings)
    if count <= 1:
        return None
    return start_launcher(
        FrontendOptions(
            count,
            http_options(settings),
            grpc_options(settings),
            partial(http_tls, settings),
            partial(grpc_tls, settings),
            memory_bytes(settings),
            _key_options(settings),
            tuple(map(HostPolicies(settings.host_policy).frontend_place, range(count))),
            settings.model_namespacing,
        )
    )


def _key_options(settings: Settings) -> KeyOptions | None:
    """Returns None where nobody needs an API key. Raises NaiadError."""
    if not has_keys(settings):
        return None
    if settings.jwt_jwks:
        _build_verifier(settings)  # what it imports is shared by the processes that are forked
    return KeyOptions(
        settings.api_key,
        settings.api_key_header,
        frozenset(settings.guarded_api),
        bool(settings.audit_log),
        partial(_build_verifier, settings) if settings.jwt_jwks else None,
        settings.trusted_proxy,
    )


def build_frontends(
    loop: asyncio.AbstractEventLoop, launcher: LauncherProcess, core: InferenceCore
) -> Frontends:
    return Frontends(loop, launcher, core, core.repository.directory)


def _cache(settings: Settings, clock: Clock) -> ResponseCache | None:
    """Raises NaiadError."""
    entries = settings.cache_config
    if not entries:
        return None
    return build_cache(entries[0].cache, {entry.setting: entry.value for entry in entries}, clock)


def _rate_limiter(settings: Settings, clock: Clock) -> RateLimiter | None:
    if settings.rate_limit != "execution_count":
        return None
    available = {(limit.name, limit.device): limit.count for limit in settings.rate_limit_resource}
    return RateLimiter(clock, available or None)


def build_tracing(settings: Settings) -> Tracing:
    """Raises NaiadError."""
    options = read_trace_options(settings.trace_config)
    if options.mode != OPENTELEMETRY:
        return Tracing(options)
    try:
        from naiad.trace.otel import OtelSink
    except ImportError as error:
        raise unsupported(
            "--trace-config mode=opentelemetry needs the extra 'otel' "
            f"({install_command('otel')}): "
            f"{error}"
        ) from error
    return Tracing(options, OtelSink(options.otel))


def grpc_tls(settings: Settings) -> CertificateWatch | None:
    """Raises NaiadError. As in Triton, the flag for mutual authentication implies TLS."""
    if not (settings.grpc_use_ssl or settings.grpc_use_ssl_mutual):
        return None
    files = TlsFiles(
        "grpc",
        settings.grpc_server_cert,
        settings.grpc_server_key,
        settings.grpc_root_cert,
        settings.grpc_use_ssl_mutual,
    )
    return CertificateWatch(files, HTTP2)


def http_tls(settings: Settings) -> CertificateWatch | None:
    """Raises NaiadError."""
    if not (settings.http_use_ssl or settings.http_use_ssl_mutual):
        return None
    files = TlsFiles(
        "http",
        settings.http_server_cert,
        settings.http_server_key,
        settings.http_root_cert,
        settings.http_use_ssl_mutual,
    )
    return CertificateWatch(files, HTTP1)


def _store(repository: str, settings: Settings) -> Store:
    if is_remote(repository):
        return open_store(repository, settings.repository_cache_directory)
    if not Path(repository).is_dir():
        raise NaiadError(
            Code.INTERNAL,
            f"failed to stat file {repository}: no such directory",
            details="\n".join(layout_hints(Path(repository))),
        )
    return LocalStore(Path(repository))


async def _control(core: InferenceCore, caller: str, operation: ControlOperation) -> bool:
    """Runs pb_utils.load_model, unload_model or is_model_ready for the instance `caller`."""
    match operation.kind:
        case "load_model":
            parameters: dict[str, str | bytes] = dict(operation.files)
            if operation.config:
                parameters["config"] = operation.config
            await core.load_model(operation.model_name, parameters, caller)
        case "unload_model":
            await core.unload_model(
                operation.model_name, unload_dependents=operation.unload_dependents, caller=caller
            )
        case "is_model_ready":
            ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            core.ask_model_ready(operation.model_name, operation.model_version, ready.set_result)
            return await ready
        case _:
            raise internal(f"unknown control operation '{operation.kind}'")
    return True


def cache_reading(core: InferenceCore) -> CacheReading | None:
    return core.cache.read() if isinstance(core.cache, LocalCache) else None


def key_reading(keys: Keys | None) -> KeyReading | None:
    if keys is None:
        return None
    accounts = keys.guard.accounts
    counts = [
        KeyCounts(
            account.key_id,
            account.num_requests,
            {_reason(code): number for code, number in account.refusals.items()},
            account.num_prompt_tokens,
            account.num_output_tokens,
        )
        for account in accounts.all()
    ]
    refusals = {_reason(code): number for code, number in accounts.refusals.items()}
    return KeyReading(
        [KeyCounts("", refusals=refusals), *counts],
        None if keys.watch is None else keys.watch.is_good,
        0 if keys.watch is None else keys.watch.num_failures,
        None if keys.audit is None else keys.audit.num_dropped,
        None if keys.key_set is None else keys.key_set.is_good,
        0 if keys.key_set is None else keys.key_set.num_failures,
    )


def _reason(code: Code) -> str:
    return code.name.lower()


def model_series(core: InferenceCore) -> Iterable[ModelSeries]:
    now_ns = time.monotonic_ns()
    for model in core.repository.models():
        yield ModelSeries(
            model.statistics,
            dict(model.config.metric_tags),
            sum(instance.is_healthy for instance in model.instances),
            model.oldest_execution_s(now_ns),
            model.config.response_cache.enable,
            namespace=model.namespace,
        )
