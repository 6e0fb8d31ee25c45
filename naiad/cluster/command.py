"""The commands `naiad cluster ...`."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import click

from naiad.cluster import ray_node
from naiad.cluster.actors import sweep_folder
from naiad.cluster.spec import read_spec
from naiad.errors import NaiadError, invalid_arg
from naiad.tools.command_context import CONTEXT

CONTROLLER = "naiad-controller"
HEAD_MARK = "node:__internal_head__"
"""A resource that Ray gives to its head node."""
LABEL_HELP = "A label of this node for placement, KEY=VALUE. May be repeated."


@click.group("cluster", context_settings=CONTEXT)
def command() -> None:
    """Serve models on many machines, with Ray.

    \b
      naiad cluster start                       # this machine is the head
      naiad cluster join HEAD:6380 --token-file token     # on another machine
      naiad cluster apply cluster.toml
      naiad cluster status
    """


@command.command("start", context_settings=CONTEXT)
@click.option("--address", default="", metavar="IP", help="This machine's address for the others.")
@click.option("--port", default=ray_node.DEFAULT_PORT, show_default=True, help="Ray's port.")
@click.option("--name", default="", help="Name of this node. Default: the host name.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help=LABEL_HELP)
def start(address: str, port: int, name: str, labels: tuple[str, ...]) -> int:
    """Make a cluster with this machine as its head, or start its head again."""
    ray_node.require_ray()
    ray_node.check_port(port)
    own = ray_node.check_address(address) if address else _own_address()
    token = ray_node.make_token()
    if not ray_node.is_open(own, port):
        ray_node.start_head(own, port, name, _labels(labels), token)
    ray_node.connect(f"{own}:{port}")
    (ray_node.state_folder() / "head").write_text(f"{own}:{port}")
    start_controller()
    click.echo(f"The cluster's head is {own}:{port}.")
    if ray_node.is_loopback(own):
        click.echo("Other machines cannot join it: its address is on this machine only.")
    else:
        click.echo("To add a machine, copy the token there, then:")
        click.echo(f"  naiad cluster join {own}:{port} --token-file TOKEN   # a copy of {token}")
    click.echo("Next: naiad cluster apply FILE")
    return 0


@command.command("attach", context_settings=CONTEXT)
@click.option(
    "--address",
    default="auto",
    show_default=True,
    metavar="HEAD:PORT",
    help="Address of Ray's head; auto finds the one on this machine.",
)
@click.option("--timeout", default=300.0, show_default=True, help="Seconds to wait for Ray.")
def attach(address: str, timeout: float) -> int:
    """Use a Ray cluster that something else runs, such as KubeRay.

    Run it on Ray's head. Ray must have token authentication: the token is read from RAY_AUTH_TOKEN,
    or from the file that RAY_AUTH_TOKEN_PATH names.
    """
    ray_node.require_ray()
    ray_node.take_environment_token()
    deadline_s = time.monotonic() + timeout
    while True:
        try:
            ray_node.connect(address)
            break
        except NaiadError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(1.0)
    (ray_node.state_folder() / "head").write_text(address)
    start_controller()
    click.echo(f"The cluster uses Ray at {address}. Next: naiad cluster apply FILE")
    return 0


@command.command("join", context_settings=CONTEXT)
@click.argument("head", metavar="HEAD:PORT")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="A copy of the token of the head."
)
@click.option("--address", default="", metavar="IP", help="This machine's address for the others.")
@click.option("--name", default="", help="Name of this node. Default: the host name.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help=LABEL_HELP)
def join(
    head: str, token_file: Path | None, address: str, name: str, labels: tuple[str, ...]
) -> int:
    """Add this machine to a cluster."""
    ray_node.require_ray()
    host, _, port = head.rpartition(":")
    if not host or not port.isdigit():
        raise invalid_arg(f"'{head}' is not HEAD:PORT, such as 10.0.0.1:{ray_node.DEFAULT_PORT}")
    if ray_node.is_loopback(host):
        raise invalid_arg(
            f"'{host}' is an address of this machine only: give the address that "
            "`naiad cluster start` has shown on the head"
        )
    if not ray_node.is_open(host, int(port)):
        raise invalid_arg(f"nothing listens at {head}: run `naiad cluster start` on the head first")
    token = ray_node.take_token(token_file or ray_node.token_path())
    own = ray_node.check_address(address) if address else ""
    ray_node.join_head(head, own, name, _labels(labels), token)
    (ray_node.state_folder() / "head").write_text(head)
    click.echo(f"This machine is part of the cluster at {head}.")
    return 0


@command.command("apply", context_settings=CONTEXT)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--wait/--no-wait", default=True, help="Wait until everything is as the file says.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")
def apply(file: Path, wait: bool, timeout: float) -> int:
    """Bring about what a cluster file says: TOML, YAML or JSON."""
    read_spec(file)
    _raise(_call("apply", file.read_bytes(), file.suffix, str(file.resolve())))
    return _follow(timeout) if wait else 0


@command.command("rollback", context_settings=CONTEXT)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")
def rollback(timeout: float) -> int:
    """Go back to the file that was applied before."""
    _raise(_call("rollback"))
    return _follow(timeout)


@command.command("status", context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> int:
    """Show nodes, replicas, where they are and why."""
    found = _call("status")
    click.echo(json.dumps(found, indent=2) if as_json else describe(found))
    return 0


@command.command("logs", context_settings=CONTEXT)
@click.argument("name")
@click.option("--lines", default=50, show_default=True)
def logs(name: str, lines: int) -> int:
    """Show the last lines of a replica, of all of a deployment's, or of the `router`.

    Each line begins with [NODE/REPLICA].
    """
    text, error = _call("last_lines", name, lines)
    _raise(error)
    click.echo(text)
    return 0


@command.command("drain", context_settings=CONTEXT)
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let the node have replicas again.")
@click.option("--wait", is_flag=True, help="Wait until the node has no replicas.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")
def drain(node: str, undo: bool, wait: bool, timeout: float) -> int:
    """Move all replicas away from a node, without a failed request."""
    _raise(_call("drain", node, not undo))
    deadline_s = time.monotonic() + timeout
    while wait and not undo:
        left = _replicas_on(node, _call("status"))
        if not left:
            break
        if time.monotonic() > deadline_s:
            click.echo(
                f"error: the node still has {', '.join(left)} after {timeout:.0f} s", err=True
            )
            return 1
        time.sleep(0.5)
    return 0


@command.command("down", context_settings=CONTEXT)
@click.option("--grace", default=30.0, show_default=True, help="Seconds for requests to finish.")
def down(grace: float) -> int:
    """Stop all replicas and the router, and Ray on this machine."""
    stopped = 0
    try:
        stopped = _call("down", grace, timeout_s=3 * grace + 30)
    except NaiadError as error:
        click.echo(f"warning: {error.message}", err=True)
    # Supervisors end first: they would start again what is stopped here.
    ray_node.end_ray()
    ray_node.forget_ray()
    (ray_node.state_folder() / "head").unlink(missing_ok=True)
    for node in sorted((ray_node.state_folder() / "nodes").glob("*")):
        stopped += len(sweep_folder(str(node), frozenset()))
    click.echo(f"{stopped} servers stopped.")
    return 0


def _replicas_on(node: str, found: dict[str, Any]) -> list[str]:
    return [
        name
        for row in found["nodes"]
        if node in (row["name"], row["address"])
        for name in row["replicas"]
    ]


def describe(found: dict[str, Any]) -> str:
    router = found["router"]
    lines = [f"router  {router['state']}  {router['http']}  grpc {router['grpc']}"]
    if len(router["routers"]) > 1:
        lines += [
            f"    {row['name']}  {row['state']}  on {row['node']}" for row in router["routers"]
        ]
    lines += [
        f"    {row['name']} on {row['node']}: {row['problem']}"
        for row in router["routers"]
        if row["problem"]
    ]
    for node in found["nodes"]:
        total, free = node["total"], node["free"]
        lines.append(
            f"node    {node['name']}  {node['address']}  {node['state']}  "
            f"CPUs {free['cpus']:g} of {total['cpus']:g} free, GPUs {free['gpus']:g} of "
            f"{total['gpus']:g} free  {node['accelerator_type']}".rstrip()
        )
    for deployment in found["deployments"]:
        lines.append(
            f"{deployment['name']}  {deployment['ready']} of {deployment['wanted']} ready  "
            f"revision {deployment['revision']}"
        )
        if deployment["problem"]:
            lines += [f"    {part.strip()}" for part in deployment["problem"].split(";")]
        for replica in deployment["replicas"]:
            why = replica["reason"] or replica["placed_because"]
            if replica["ejected_models"]:
                why = f"the router sends it no requests of {replica['ejected_models']:g} models"
            lines.append(
                f"    {replica['name']}  {replica['state']}  on {replica['node']}  "
                f"{replica['in_flight']:g} requests  {replica['url']}  ({why})"
            )
    if found["error"]:
        lines += ["The controller reports an error of its own:", found["error"].rstrip()]
    return "\n".join(lines)


def _follow(timeout_s: float) -> int:
    """Prints changes until the cluster is as the file says. Returns the exit code."""
    deadline_s, shown = time.monotonic() + timeout_s, ""
    time.sleep(1.5)  # The controller looks once a second.
    while True:
        found = _call("status")
        text = "\n".join(describe({**found, "nodes": []}).splitlines()[1:])
        if text != shown:
            click.echo(text)
            shown = text
        if found["is_settled"]:
            click.echo(f"Ready: {found['router']['http']}")
            return 0
        if time.monotonic() > deadline_s:
            click.echo(
                f"error: not everything is ready after {timeout_s:.0f} s; the cluster goes on "
                "trying (naiad cluster status)",
                err=True,
            )
            return 1
        time.sleep(0.5)


def start_controller() -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from naiad.cluster.actors import ControllerActor

    head = next(
        (row["NodeID"] for row in ray.nodes() if row["Alive"] and HEAD_MARK in row["Resources"]),
        ray.get_runtime_context().get_node_id(),
    )
    handle = (
        ray.remote(ControllerActor)
        .options(
            name=CONTROLLER,
            namespace="naiad",
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=8,
            scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False),
        )
        .remote(str(ray_node.state_folder()), head)
    )
    try:
        ray.get(handle.status.remote(), timeout=60)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise invalid_arg(f"the controller did not start: {cause}") from None


def _call(method: str, *arguments: object, timeout_s: float = 60.0) -> Any:
    """Calls the controller. Raises NaiadError."""
    if not ray_node.is_connected():
        ray_node.connect(_head_address())
    import ray

    try:
        handle = ray.get_actor(CONTROLLER, namespace="naiad")
        return ray.get(getattr(handle, method).remote(*arguments), timeout=timeout_s)
    except (ValueError, ray.exceptions.RayError) as error:
        first = str(error).strip().splitlines()
        raise invalid_arg(
            f"the controller does not answer: {first[0] if first else error}. What serves goes "
            "on; `naiad cluster start` on the head starts the controller again"
        ) from None


def _head_address() -> str:
    """Raises NaiadError."""
    file = ray_node.state_folder() / "head"
    if file.exists():
        return file.read_text().strip()
    # A pod of KubeRay that runs no head: KubeRay sets these.
    if os.environ.get("RAY_ADDRESS") and os.environ.get("RAY_AUTH_TOKEN"):
        ray_node.take_environment_token()
        return os.environ["RAY_ADDRESS"]
    raise invalid_arg("this machine belongs to no cluster: `naiad cluster start` makes one")


def _raise(error: str) -> None:
    if error:
        raise invalid_arg(error)


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise invalid_arg(f"label '{text}' is not KEY=VALUE")
        labels[key] = value
    return labels


def _own_address() -> str:
    """The address of the interface of the default route; loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # No packet is sent.
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
        return address
