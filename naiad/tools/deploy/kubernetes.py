"""Builds the manifests of `naiad deploy kubernetes`: the same labels, ports, probes and limits of
rights as the chart in deploy/helm/naiad, with numbers that fit the models.

In:  Plan. Out: manifests as plain values.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from naiad import __version__

DRAIN_DELAY_S = 5
EXIT_TIMEOUT_S = 30
GRACE_S = DRAIN_DELAY_S + EXIT_TIMEOUT_S + 15
PROBE_PERIOD_S = 2
MIN_STARTUP_S = 60
MIB = 1 << 20
KEY_FOLDER = "/etc/naiad/keys"
TLS_FOLDER = "/etc/naiad/tls"
Manifest = dict[str, Any]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    image: str
    arguments: list[str]
    """What is served: --model-repository or --model."""
    num_gpus: int
    gpu_resource: str = "nvidia.com/gpu"
    num_cpus: int
    memory_bytes: int
    startup_s: float
    cache_bytes: int
    replicas: int = 1
    models_claim: str = ""
    key_secret: str = ""
    key_file: str = "keys.json"
    tls_secret: str = ""
    scaler: str = "none"
    """none, hpa or keda."""
    max_replicas: int = 4
    prometheus: str = "http://prometheus-operated.monitoring:9090"
    is_language: bool = False

    @property
    def full_name(self) -> str:
        """The chart names its objects in the same way."""
        short = self.name[:50].rstrip("-")
        return short if "naiad" in self.name else f"{short}-naiad"

    @property
    def selector(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "naiad", "app.kubernetes.io/instance": self.name}


def build_manifests(plan: Plan) -> list[Manifest]:
    scaler = {"none": [], "hpa": [_autoscaler(plan)], "keda": [_scaled_object(plan)]}[plan.scaler]
    return [_service_account(plan), _deployment(plan), _service(plan), _budget(plan), *scaler]


def _metadata(plan: Plan) -> Manifest:
    metadata: Manifest = {
        "name": plan.full_name,
        "labels": {
            **plan.selector,
            "app.kubernetes.io/version": __version__,
            "app.kubernetes.io/managed-by": "naiad",
        },
    }
    if plan.namespace:
        metadata["namespace"] = plan.namespace
    return metadata


def _service_account(plan: Plan) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(plan),
        "automountServiceAccountToken": False,
    }


def _deployment(plan: Plan) -> Manifest:
    spec: Manifest = {
        "selector": {"matchLabels": plan.selector},
        "template": {"metadata": {"labels": _metadata(plan)["labels"]}, "spec": _pod(plan)},
    }
    if plan.scaler == "none":
        spec = {"replicas": plan.replicas, **spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(plan),
        "spec": spec,
    }


def _pod(plan: Plan) -> Manifest:
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "emptyDir": {"sizeLimit": quantity(plan.cache_bytes)}},
    ]
    if plan.models_claim:
        claim = {"claimName": plan.models_claim, "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    for name, secret in (("keys", plan.key_secret), ("tls", plan.tls_secret)):
        if secret:
            volumes.append({"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}})
    pod: Manifest = {
        "serviceAccountName": plan.full_name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": plan.selector},
            }
        ],
        "containers": [_container(plan)],
        "volumes": volumes,
    }
    if plan.num_gpus:
        pod["tolerations"] = [{"key": plan.gpu_resource, "operator": "Exists"}]
    return pod


def _container(plan: Plan) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": "/cache"},
    ]
    if plan.models_claim:
        mounts.append({"name": "models", "mountPath": "/models", "readOnly": True})
    # Folders, not subPaths: only a folder follows changes of the Secret.
    for name, secret, folder in (
        ("keys", plan.key_secret, KEY_FOLDER),
        ("tls", plan.tls_secret, TLS_FOLDER),
    ):
        if secret:
            mounts.append({"name": name, "mountPath": folder, "readOnly": True})
    memory = quantity(plan.memory_bytes)
    gpus = {plan.gpu_resource: plan.num_gpus} if plan.num_gpus else {}
    ready, live = "/v2/health/ready", "/v2/health/live"
    budget_s = max(MIN_STARTUP_S, plan.startup_s)
    return {
        "name": "naiad",
        "image": plan.image,
        "args": _arguments(plan),
        "ports": [
            {"name": "http", "containerPort": 8000},
            {"name": "grpc", "containerPort": 8001},
            {"name": "metrics", "containerPort": 8002},
        ],
        "startupProbe": _probe(plan, ready, PROBE_PERIOD_S, math.ceil(budget_s / PROBE_PERIOD_S)),
        "readinessProbe": _probe(plan, ready, 5, 2, timeout_s=3),
        "livenessProbe": _probe(plan, live, 10, 3, timeout_s=5),
        "resources": {
            "requests": {"cpu": str(plan.num_cpus), "memory": memory, **gpus},
            "limits": {"memory": memory, **gpus},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _arguments(plan: Plan) -> list[str]:
    arguments = [
        "naiad",
        "serve",
        "--http-address=0.0.0.0",
        "--grpc-address=0.0.0.0",
        f"--drain-delay-secs={DRAIN_DELAY_S}",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        *plan.arguments,
    ]
    if plan.key_secret:
        arguments.append(f"--api-key-file={KEY_FOLDER}/{plan.key_file}")
    if plan.tls_secret:
        for protocol in ("http", "grpc"):
            arguments += [
                f"--{protocol}-use-ssl=true",
                f"--{protocol}-server-cert={TLS_FOLDER}/tls.crt",
                f"--{protocol}-server-key={TLS_FOLDER}/tls.key",
            ]
    return arguments


def _probe(
    plan: Plan, path: str, period_s: int, num_failures: int, timeout_s: int | None = None
) -> Manifest:
    scheme = "HTTPS" if plan.tls_secret else "HTTP"
    probe: Manifest = {
        "httpGet": {"path": path, "port": "http", "scheme": scheme},
        "periodSeconds": period_s,
        "failureThreshold": num_failures,
    }
    return probe if timeout_s is None else {**probe, "timeoutSeconds": timeout_s}


def _service(plan: Plan) -> Manifest:
    grpc: Manifest = {"name": "grpc", "port": 8001, "targetPort": "grpc"}
    if not plan.tls_secret:
        grpc["appProtocol"] = "kubernetes.io/h2c"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan),
        "spec": {
            "type": "ClusterIP",
            "selector": plan.selector,
            "ports": [
                {"name": "http", "port": 8000, "targetPort": "http"},
                grpc,
                {"name": "metrics", "port": 8002, "targetPort": "metrics"},
            ],
        },
    }


def _budget(plan: Plan) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(plan),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": plan.selector},
        },
    }


def _target(plan: Plan) -> Manifest:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": plan.full_name}


def _autoscaler(plan: Plan) -> Manifest:
    target = {"type": "Utilization", "averageUtilization": 80}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(plan),
        "spec": {
            "scaleTargetRef": _target(plan),
            "minReplicas": plan.replicas,
            "maxReplicas": plan.max_replicas,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def _scaled_object(plan: Plan) -> Manifest:
    namespace = f'namespace="{plan.namespace}",' if plan.namespace else ""
    pods = f'{{{namespace}pod=~"{plan.full_name}-.*"}}'
    waiting = f"sum(nv_inference_pending_request_count{pods})"
    if plan.is_language:
        waiting += f" + (sum(vllm:num_requests_waiting{pods}) or vector(0))"
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(plan),
        "spec": {
            "scaleTargetRef": _target(plan),
            "minReplicaCount": plan.replicas,
            "maxReplicaCount": plan.max_replicas,
            "cooldownPeriod": 300,
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": plan.prometheus,
                        "query": waiting,
                        "threshold": "8",
                    },
                }
            ],
        },
    }


def quantity(num_bytes: int) -> str:
    """Rounds up to 128 MiB, or to whole GiB from 4 GiB on."""
    if num_bytes >= 4 << 30:
        return f"{math.ceil(num_bytes / (1 << 30))}Gi"
    return f"{128 * math.ceil(num_bytes / (128 * MIB))}Mi"
