"""What the router is told: its replicas, and how requests of each model are routed.

In:  `--replica` texts, a config file (TOML or JSON), bodies of the admin API. Out: typed structs.
Rule: everything that can be wrong in it is found here, with the field and what was expected.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

import msgspec

from naiad.errors import invalid_arg
from naiad.router.address import Address, parse_address
from naiad.router.breaker import BreakerOptions
from naiad.router.outlier import OutlierOptions

MAX_CONFIG_BYTES = 16 * 1024 * 1024


class ReplicaSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    url: str
    """http://HOST:PORT, or https://."""
    grpc: str = ""
    """HOST:PORT or grpcs://HOST:PORT; empty for a replica that has no gRPC port."""
    name: str = ""
    """The name in metrics, logs and the admin API; HOST:PORT of the URL if it is empty."""
    node: str = ""
    """The name of its machine, a label of its metrics; empty if there is none."""
    note: str = ""
    """A text for the admin API, such as why the replica is on its machine."""
    kv_events: str = ""
    """The ZeroMQ endpoint at which the engine publishes what its KV cache holds."""
    kv_replay: str = ""
    """The ZeroMQ endpoint from which missed events are fetched."""

    @property
    def http_address(self) -> Address:
        return parse_address(self.url, ("http", "https"), "url")

    @property
    def grpc_address(self) -> Address | None:
        return parse_address(self.grpc, ("grpc", "grpcs"), "grpc") if self.grpc else None

    @property
    def full_name(self) -> str:
        return self.name or self.http_address.authority


class NodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine, for the admin API. Routing does not depend on it."""

    name: str
    address: str = ""
    state: str = ""
    accelerator_type: str = ""
    labels: dict[str, str] = {}
    cpus: float = 0.0
    gpus: float = 0.0
    free_cpus: float = 0.0
    free_gpus: float = 0.0


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How requests of the models that match a pattern are routed."""

    policy: str = ""
    """least_load, round_robin, session, prefix or module:Class; empty is the router's default."""
    idempotent: bool = True
    """A request whose replica died before it responded may be executed again."""
    tokenizer: str = ""
    """The folder of the checkpoint, or its tokenizer.json; policy `prefix` needs it."""
    block_size: int = 0
    """The tokens of a block of the KV cache; 0 learns it from the engine's events."""
    response_timeout_s: float = 0.0
    """The end of an inference whose response does not begin; 0 waits for as long as the client."""
    options: dict[str, str | int | float | bool] = {}
    """Arguments of a policy of the user's own."""

    def __post_init__(self) -> None:
        if self.response_timeout_s < 0:
            raise ValueError("response_timeout_s must not be negative")


class HealthOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_s: float = 1.0
    timeout_s: float = 2.0
    failures: int = 2
    """Checks without a response in a row after which a replica is down. A refused connection counts
    at once."""
    abandon_s: float = 30.0
    """After this time, requests that still wait for a replica that is down fail."""

    def __post_init__(self) -> None:
        if min(self.interval_s, self.timeout_s) <= 0 or self.failures < 1 or self.abandon_s < 0:
            raise ValueError(
                "health needs interval_s > 0, timeout_s > 0, failures >= 1 and abandon_s >= 0"
            )


class RetryOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_retries: int = 3
    """Further attempts for one request."""
    budget: float = 0.2
    """Retries that each request adds to what may be spent."""
    burst: int = 200
    """Retries that may be spent at once."""
    backoff_s: float = 0.05
    """The wait before a replica is tried again by the same request. It doubles each time."""

    def __post_init__(self) -> None:
        if min(self.max_retries, self.budget, self.burst, self.backoff_s) < 0:
            raise ValueError("retry needs numbers that are not negative")


class RouterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replica: tuple[ReplicaSpec, ...] = ()
    node: tuple[NodeSpec, ...] = ()
    policy: str = "least_load"
    model: dict[str, ModelSpec] = {}
    """The keys are patterns, as in a shell: `llama*`. The first pattern that matches counts."""
    health: HealthOptions = HealthOptions()
    retry: RetryOptions = RetryOptions()
    breaker: BreakerOptions = BreakerOptions()
    outlier: OutlierOptions = OutlierOptions()
    asleep: tuple[str, ...] = ()
    """Models that may have no replica because none is needed. A request for one waits, which wakes
    it: whoever starts replicas reads naiad_router_waiting_requests."""
    max_wait_s: float = 60.0
    """How long such a request waits for a replica."""
    read_timeout_s: float = 60.0
    """The end of a request for metadata, a configuration or statistics whose response does not
    begin; 0 waits for as long as the client."""
    max_waiting: int = 1024
    """Such requests that wait at the same time; more are refused."""

    def model_spec(self, name: str) -> ModelSpec:
        for pattern, spec in self.model.items():
            if fnmatch.fnmatchcase(name, pattern):
                return spec
        return ModelSpec()


def parse_replica(text: str) -> ReplicaSpec:
    """Parses `URL[,grpc=HOST:PORT][,name=NAME][,kv_events=ENDPOINT][,kv_replay=ENDPOINT]`.

    Raises NaiadError."""
    url, *rest = text.split(",")
    fields: dict[str, str] = {"url": url}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise invalid_arg(f"replica '{text}': '{part}' is not a field, expected KEY=VALUE")
        if key in fields:
            raise invalid_arg(f"replica '{text}': '{key}' is repeated")
        fields[key] = value
    try:
        spec = msgspec.convert(fields, ReplicaSpec)
    except msgspec.ValidationError as error:
        known = ", ".join(ReplicaSpec.__struct_fields__[1:])
        raise invalid_arg(f"replica '{text}': {error}; the fields are {known}") from None
    check_replica(spec)
    return spec


def check_replica(spec: ReplicaSpec) -> None:
    """Raises NaiadError."""
    address, grpc = spec.http_address, spec.grpc_address
    if grpc is not None and grpc.authority == address.authority:
        raise invalid_arg(
            f"replica '{spec.full_name}': HTTP and gRPC have the same address {grpc.authority}"
        )
    for field in ("kv_events", "kv_replay"):
        endpoint = getattr(spec, field)
        if endpoint and not endpoint.startswith(("tcp://", "ipc://")):
            raise invalid_arg(
                f"replica '{spec.full_name}': {field} is '{endpoint}', expected tcp://HOST:PORT or "
                "ipc://PATH"
            )
    if "/" in spec.name:
        raise invalid_arg(f"replica name '{spec.name}' must not contain '/'")
    for field in ("name", "node", "note", "kv_events", "kv_replay"):
        text = getattr(spec, field)
        if any(not character.isprintable() for character in text):
            raise invalid_arg(f"replica {field} {text!a} has a control character")


def check_replicas(specs: tuple[ReplicaSpec, ...]) -> None:
    """Raises NaiadError."""
    names: set[str] = set()
    addresses: dict[str, str] = {}
    for spec in specs:
        check_replica(spec)
        name, authority = spec.full_name, spec.http_address.authority
        if name in names:
            raise invalid_arg(f"two replicas have the name '{name}'")
        if authority in addresses:
            raise invalid_arg(
                f"the replicas '{addresses[authority]}' and '{name}' have the same url '{spec.url}'"
            )
        names.add(name)
        addresses[authority] = name


def read_config(path: Path) -> RouterConfig:
    """Raises NaiadError."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise invalid_arg(f"config file '{path}' is larger than {MAX_CONFIG_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise invalid_arg(f"cannot read the config file '{path}': {error.strerror}") from None
    try:
        if path.suffix == ".json":
            config = msgspec.json.decode(data, type=RouterConfig)
        else:
            config = msgspec.toml.decode(data, type=RouterConfig)
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid_arg(f"config file '{path}': {error}") from None
    check_replicas(config.replica)
    return config
