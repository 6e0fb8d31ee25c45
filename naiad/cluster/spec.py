"""The cluster file: what should be served, by how many replicas, and where.

In:  TOML, JSON or YAML, by the suffix of the file. Out: ClusterSpec.
Rule: everything that can be wrong in the file itself is found here, with the field and the fix.
      Whether the machines can do it is the question of placement.py.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal

import msgspec

from naiad.cluster.resources import Resources
from naiad.core.byte_size import parse_bytes
from naiad.errors import NaiadError, invalid_arg
from naiad.keys.key import parse_duration

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_ROUTERS = 64
ROUTERS_NAME = "router"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESERVED_ARGUMENTS = (
    "--http-port", "--grpc-port", "--metrics-port", "--model-repository", "--load-model",
    "--model-control-mode", "--http-address", "--grpc-address", "--metrics-address",
    "--allow-http", "--allow-grpc", "--allow-metrics", "--api-key-file", "--log-file",
    "--node-name", "--replica-name",
)  # fmt: skip


def seconds(text: str, field: str) -> float:
    """Raises ValueError."""
    try:
        return parse_duration(text, field).total_seconds()
    except NaiadError as error:
        raise ValueError(error.message) from None


class ResourceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpus: float = 1.0
    gpus: float = 0.0
    """Whole GPUs, or a share of one below 1."""
    memory: int | str = 0
    """Main memory, such as "4GiB". 0 reserves none."""
    accelerator_type: str = ""
    """As Ray names it, e.g. H100; empty for any."""

    def __post_init__(self) -> None:
        if not 0 <= self.cpus <= 100_000:
            raise ValueError(f"cpus is {self.cpus:g}, expected a number of cores")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ValueError(
                f"gpus is {self.gpus:g}, expected a whole number, or a share between 0 and 1"
            )
        parse_bytes(self.memory, "memory")

    @property
    def resources(self) -> Resources:
        return Resources(
            cpus=self.cpus, gpus=self.gpus, memory_bytes=parse_bytes(self.memory, "memory")
        )


class PlacementSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    strategy: Literal["spread", "pack"] = "spread"
    """spread: on the node with the fewest replicas of this deployment; pack: on the fullest node
    that has room."""
    require: dict[str, str] = {}
    """Labels that a node must have. A value may list several: "a|b"."""
    prefer: dict[str, str] = {}
    avoid: dict[str, str] = {}
    """Labels that a node should not have; it is used only if no other can be."""
    nodes: tuple[str, ...] = ()
    """Names or addresses of the only nodes that may be used."""
    max_replicas_per_node: int = 0
    """0 is without limit; 1 keeps replicas of this deployment on different nodes."""
    away_from: tuple[str, ...] = ()
    """Deployments whose replicas must be on other nodes."""
    near: tuple[str, ...] = ()
    """Deployments whose nodes are preferred."""
    policy: str = ""
    """module:Class of a policy of your own, which replaces the strategy."""

    def __post_init__(self) -> None:
        if self.max_replicas_per_node < 0:
            raise ValueError("max_replicas_per_node must not be negative")
        for label in sorted(set(self.require) & set(self.avoid)):
            if self.require[label] == self.avoid[label]:
                raise ValueError(
                    f"placement contradicts itself: it requires and avoids "
                    f"{label}={self.require[label]}"
                )
        for name in sorted(set(self.away_from) & set(self.near)):
            raise ValueError(f"placement contradicts itself: near and away_from both name '{name}'")
        module, colon, attribute = self.policy.partition(":")
        if self.policy and not (module and colon and attribute.isidentifier()):
            raise ValueError(f"policy is '{self.policy}', expected module:Class")


class AutoscalingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    min_replicas: int = 1
    """0 lets the deployment sleep: the router keeps requests until a replica is ready."""
    max_replicas: int = 1
    target_queue: float = 4.0
    """Requests that wait or run, per replica."""
    target_first_token_ms: float = 0.0
    """The 90th percentile of the time to the first token; 0 does not look at it."""
    scale_up_after: str = "5s"
    scale_down_after: str = "5m"

    def __post_init__(self) -> None:
        if self.min_replicas < 0 or self.max_replicas < max(1, self.min_replicas):
            raise ValueError(
                f"autoscaling needs 0 <= min_replicas <= max_replicas and max_replicas >= 1, got "
                f"{self.min_replicas} and {self.max_replicas}"
            )
        if self.target_queue <= 0:
            raise ValueError(f"target_queue is {self.target_queue:g}, expected more than 0")
        if self.target_first_token_ms < 0:
            raise ValueError("target_first_token_ms must not be negative")
        for field in ("scale_up_after", "scale_down_after"):
            seconds(getattr(self, field), field)


class DeploymentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replicas that serve the same models."""

    name: str
    repository: str
    """A model repository: a folder that every node has, or an address of a store."""
    models: tuple[str, ...] = ()
    """The models that are loaded; empty loads all of the repository."""
    replicas: int | None = None
    """None is 1, or what `autoscaling` finds."""
    resources: ResourceSpec = ResourceSpec()
    placement: PlacementSpec = PlacementSpec()
    autoscaling: AutoscalingSpec | None = None
    arguments: tuple[str, ...] = ()
    """Further flags of `naiad serve`."""
    environment: dict[str, str] = {}
    router_policy: str = ""
    """least_load, round_robin, session, prefix or module:Class."""
    tokenizer: str = ""
    """With policy prefix: the folder of the checkpoint, or its tokenizer.json, on the machines of
    the routers. The replicas then publish what their KV caches hold."""
    start_timeout: str = "10m"
    """A replica that is not ready by then is replaced."""
    drain_timeout: str = "1m"
    """What a replica may take to finish its requests before it is stopped."""
    hang_timeout: str = "30s"
    """A server that has served and does not respond for so long is killed and started again."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"deployment name '{self.name}' must have 1 to 63 lowercase letters, digits or '-'"
            )
        if self.name == ROUTERS_NAME:
            raise ValueError(f"deployment name '{self.name}' is that of the cluster's routers")
        if not self.repository:
            raise ValueError(f"deployment '{self.name}': repository is empty")
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError(
                f"deployment '{self.name}': replicas and autoscaling exclude each other"
            )
        sleeps = self.autoscaling is not None and self.autoscaling.min_replicas == 0
        if sleeps and not self.models:
            raise ValueError(
                f"deployment '{self.name}': min_replicas is 0, so `models` must name its models: "
                "the router must know whom to wake"
            )
        if self.replicas is not None and self.replicas < 0:
            raise ValueError(f"deployment '{self.name}': replicas must not be negative")
        for argument in self.arguments:
            if argument.split("=", 1)[0] in _RESERVED_ARGUMENTS:
                raise ValueError(
                    f"deployment '{self.name}': the cluster sets {argument.split('=', 1)[0]} itself"
                )
        for field in ("start_timeout", "drain_timeout", "hang_timeout"):
            seconds(getattr(self, field), field)
        if self.tokenizer:
            self._check_tokenizer()

    def _check_tokenizer(self) -> None:
        if not self.tokenizer.startswith("/"):
            raise ValueError(
                f"deployment '{self.name}': tokenizer is '{self.tokenizer}', expected an absolute "
                "path on the machines of the routers"
            )
        if len(self.models) != 1:
            raise ValueError(
                f"deployment '{self.name}': it has a tokenizer, so `models` must name exactly one "
                "model: engines cannot share an endpoint of KV events. Make a deployment for each "
                "language model"
            )
        for argument in self.arguments:
            if "kv_events_" in argument:
                raise ValueError(
                    f"deployment '{self.name}': the cluster chooses the endpoints of KV events "
                    f"itself: remove the argument '{argument}', or the tokenizer"
                )

    @property
    def revision(self) -> str:
        """Changes when a replica must be started again. The number of replicas, autoscaling and
        placement do not count. Only the routers read the tokenizer, so its path does not count,
        but whether there is one does: the replicas then publish KV events."""
        kept: tuple[object, ...] = (
            self.repository,
            self.models,
            self.resources,
            self.arguments,
            self.environment,
            self.hang_timeout,
        )
        if self.tokenizer:
            kept += ("kv_events",)
        return hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()[:10]


class RouterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 1
    """The first router is on the head, further ones on other nodes. All have the same ports, except
    for metrics: the second uses the port after `metrics_port`, and so on."""
    address: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    policy: str = "least_load"
    api_key_file: str = ""
    """On the head, relative to the cluster file. All routers get its content, and changes of it."""
    arguments: tuple[str, ...] = ()
    """Further flags of `naiad router`."""
    max_wait: str = "1m"
    """How long the router keeps a request for a deployment that sleeps."""

    def __post_init__(self) -> None:
        for field in ("http_port", "grpc_port", "metrics_port"):
            if not 0 < getattr(self, field) < 65536:
                raise ValueError(f"router: {field} is {getattr(self, field)}, expected a port")
        if not 1 <= self.count <= MAX_ROUTERS:
            raise ValueError(f"router: count is {self.count}, expected 1 to {MAX_ROUTERS}")
        metrics = range(self.metrics_port, self.metrics_port + self.count)
        for field in ("http_port", "grpc_port"):
            if getattr(self, field) in metrics:
                raise ValueError(
                    f"router: {field} is {getattr(self, field)}, but {self.count} routers use the "
                    f"ports {metrics[0]} to {metrics[-1]} for metrics"
                )
        if metrics[-1] > 65535:
            raise ValueError(
                f"router: metrics_port is {self.metrics_port}, too high for {self.count} routers"
            )
        seconds(self.max_wait, "max_wait")


class ClusterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deployment: tuple[DeploymentSpec, ...] = ()
    router: RouterSpec = RouterSpec()

    def __post_init__(self) -> None:
        names = [deployment.name for deployment in self.deployment]
        for name in sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two deployments have the name '{name}'")
        self._check_tokenizers()
        for deployment in self.deployment:
            placement = deployment.placement
            for other in (*placement.away_from, *placement.near):
                if other not in names:
                    raise ValueError(
                        f"deployment '{deployment.name}': placement names '{other}', "
                        f"which is no deployment; the deployments are {', '.join(names)}"
                    )
                if other == deployment.name:
                    raise ValueError(
                        f"deployment '{deployment.name}': placement names itself; use "
                        "max_replicas_per_node to keep its replicas apart"
                    )

    def _check_tokenizers(self) -> None:
        for deployment in self.deployment:
            policy = deployment.router_policy or self.router.policy
            if deployment.tokenizer and policy != "prefix":
                raise ValueError(
                    f"deployment '{deployment.name}': it has a tokenizer, which only "
                    f"router_policy 'prefix' uses; its policy is '{policy}'"
                )
            for other in self.deployment:
                if (
                    deployment.tokenizer != other.tokenizer
                    and deployment.tokenizer
                    and set(deployment.models) & set(other.models)
                ):
                    raise ValueError(
                        f"the deployments '{deployment.name}' and '{other.name}' serve the model "
                        f"'{deployment.models[0]}': both need the same tokenizer"
                    )

    def in_folder(self, folder: Path) -> ClusterSpec:
        """The same, with the paths of a file in `folder`."""
        router = self.router
        if not router.api_key_file:
            return self
        path = str(folder / router.api_key_file)
        return msgspec.structs.replace(
            self, router=msgspec.structs.replace(router, api_key_file=path)
        )

    def find(self, name: str) -> DeploymentSpec | None:
        return next((each for each in self.deployment if each.name == name), None)


def read_spec(path: Path) -> ClusterSpec:
    """Raises NaiadError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise invalid_arg(f"'{path}' is larger than {MAX_FILE_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise invalid_arg(f"cannot read '{path}': {error.strerror}") from None
    return parse_spec(data, path.suffix, str(path))


def parse_spec(data: bytes, suffix: str, name: str) -> ClusterSpec:
    """Raises NaiadError."""
    try:
        match suffix:
            case ".json":
                return msgspec.json.decode(data, type=ClusterSpec)
            case ".yaml" | ".yml":
                return msgspec.yaml.decode(data, type=ClusterSpec)
            case ".toml":
                return msgspec.toml.decode(data, type=ClusterSpec)
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid_arg(f"{name}: {error}") from None
    raise invalid_arg(f"{name}: the suffix must be .toml, .yaml or .json")
