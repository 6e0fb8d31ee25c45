"""Runs the server in the image's root file system, as the image's user, on a read-only root.

`make image-test` builds the root file system and runs this as root. Mounts and processes are in
namespaces of their own, and end with the server.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.s3_server import KEYS, s3_server

ROOT = Path(__file__).parents[2]
IMAGE = Path(os.environ.get("NAIAD_IMAGE_ROOT", "/nonexistent"))
LARGEST_BYTES = 400 * 1000 * 1000
GRACE_SECS = 30

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not IMAGE.is_dir(),
    reason="needs root and NAIAD_IMAGE_ROOT: make image-test",
)

# What `docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges` does.
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$IMAGE" "$IMAGE"
mount -t proc proc "$IMAGE/proc"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$IMAGE/tmp"
mount -t tmpfs -o mode=755,size=1m tmpfs "$IMAGE/dev"
for device in null zero urandom random; do
    touch "$IMAGE/dev/$device"
    mount --bind "/dev/$device" "$IMAGE/dev/$device"
done
if [ -n "$FS_GROUP" ]; then # as the kubelet mounts an emptyDir
    mount -t tmpfs -o "mode=2777,uid=0,gid=$FS_GROUP,size=64m" tmpfs "$IMAGE/cache"
    groups="--groups=$FS_GROUP"
else
    mount --bind "$CACHE" "$IMAGE/cache"
    groups=--clear-groups
fi
mount --bind "$MODELS" "$IMAGE/models"
mount -o remount,bind,ro "$IMAGE/models"
mount -o remount,bind,ro "$IMAGE"
cd "$IMAGE"
exec env -i PATH=/opt/naiad/bin:/usr/bin:/bin HOME=/cache XDG_CACHE_HOME=/cache \
    NAIAD_CACHE=/cache/naiad PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 \
    "$CHROOT" . setpriv --reuid=1000 --regid=1000 "$groups" --no-new-privs \
    --bounding-set=-all --inh-caps=-all /opt/naiad/bin/entrypoint.sh "$@"
"""


class Container:
    """A process tree inside the image's root file system."""

    def __init__(self, cache: Path, *command: str, fs_group: str = "") -> None:
        """With `fs_group` the cache is a volume of a pod that has such a group."""
        environ = {
            **os.environ,
            "IMAGE": str(IMAGE),
            "CACHE": str(cache),
            "FS_GROUP": fs_group,
            "MODELS": str(ROOT / "examples" / "repository"),
            "CHROOT": shutil.which("chroot") or "/usr/sbin/chroot",
        }
        namespaces = ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        self.process = subprocess.Popen(
            ["unshare", *namespaces, "bash", "-c", ENTER, "enter", *command],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output(self) -> str:
        return self.process.communicate(timeout=GRACE_SECS + 30)[0]

    def first_process(self) -> int:
        """The process that has id 1 in the container."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Server:
    def __init__(self, cache: Path, *arguments: str) -> None:
        self.http, grpc, metrics = free_ports(3)
        self.container = Container(
            cache,
            "tritonserver",
            "--model-repository=/models",
            f"--http-port={self.http}",
            f"--grpc-port={grpc}",
            f"--metrics-port={metrics}",
            *arguments,
        )

    def get(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self.url(path), timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url(path), json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            return dict(json.loads(response.read()))

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http}{path}"

    def wait_until_ready(self) -> float:
        start = time.monotonic()
        while self.get("/v2/health/ready") != 200:
            assert self.container.process.poll() is None, self.container.output()
            assert time.monotonic() - start < 60
            time.sleep(0.05)
        return time.monotonic() - start

    def stop(self) -> str:
        if self.container.process.poll() is None:
            os.kill(self.container.first_process(), signal.SIGTERM)
        return self.container.output()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    os.chown(folder, 1000, 1000)
    return folder


@pytest.fixture
def server(cache: Path) -> Iterator[Server]:
    server = Server(cache, "--drain-delay-secs=2")
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


SEVEN = json.loads((ROOT / "examples" / "digits" / "seven.json").read_text())


def test_the_image_is_small() -> None:
    size = subprocess.run(
        ["du", "-sxb", "--apparent-size", IMAGE], check=True, capture_output=True, text=True
    )
    num_bytes = int(size.stdout.split()[0])
    print(f"{num_bytes / 1e6:.0f} MB")
    assert num_bytes < LARGEST_BYTES


def test_the_image_has_a_bill_of_materials() -> None:
    document = json.loads((IMAGE / "opt/naiad/sbom.cdx.json").read_text())
    names = {component["name"] for component in document["components"]}
    assert {"onnxruntime", "numpy", "uvloop", "libc6"} <= names
    assert document["specVersion"] == "1.6"


def test_serves_as_a_user_on_a_read_only_root(server: Server) -> None:
    response = server.post("/v2/models/digits/infer", SEVEN)
    assert response["model_name"] == "digits"
    pid = server.container.first_process()
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == ["1000"] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    options = {mount[4]: mount[5].split(",") for mount in mounts}
    assert "ro" in options["/"]
    assert "ro" in options["/models"]


def test_nothing_but_the_cache_and_tmp_can_be_written(cache: Path) -> None:
    script = "for f in / /opt/naiad /opt/naiad/lib /models /etc /cache /tmp; do "
    script += "if (echo x > $f/probe) 2>/dev/null; then echo $f; fi; done"
    assert Container(cache, "sh", "-c", script).output().split() == ["/cache", "/tmp"]


def test_drains_on_sigterm_within_the_grace_time(server: Server) -> None:
    start = time.monotonic()
    os.kill(server.container.first_process(), signal.SIGTERM)
    statuses = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        # During the drain delay the server is not ready, and responds to requests.
        while time.monotonic() - start < 1:
            statuses.append(server.get("/v2/health/ready"))
            future = pool.submit(server.post, "/v2/models/digits/infer", SEVEN)
            assert future.result()["model_name"] == "digits"
    assert statuses[-1] != 200
    assert server.container.process.wait(timeout=GRACE_SECS) == 0
    assert time.monotonic() - start < GRACE_SECS


def test_restarts_with_the_same_cache(cache: Path) -> None:
    for _ in range(2):
        server = Server(cache)
        seconds = server.wait_until_ready()
        assert server.post("/v2/models/digits/infer", SEVEN)["model_name"] == "digits"
        server.stop()
        assert server.container.process.returncode == 0
        print(f"ready after {seconds:.1f} s")


def test_flags_alone_belong_to_tritonserver(cache: Path) -> None:
    assert "tritonserver --model-repository" in Container(cache, "--help").output()
    assert Container(cache, "naiad", "--version").output().startswith("naiad ")
    assert "tritonserver" in Container(cache, "/opt/tritonserver/bin/tritonserver", "-h").output()


def test_the_health_check_and_the_doctor_work_in_the_image(server: Server, cache: Path) -> None:
    alone = Container(cache, "python", "/opt/naiad/healthcheck.py")
    alone.output()
    assert alone.process.returncode == 1
    inside = ["nsenter", f"--target={server.container.first_process()}", "--mount", "--pid"]
    check = subprocess.run(
        [*inside, "--root", "/opt/naiad/bin/python", "/opt/naiad/healthcheck.py"],
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr
    report = Container(cache, "naiad", "doctor", "--http-port=0", "--grpc-port=0").output()
    assert "cannot be written" not in report


def test_serves_a_bucket_in_a_pod_with_an_fs_group(cache: Path) -> None:
    """The whole cache is the pod's volume, and so is what the cluster's state is kept in."""
    http, grpc, metrics = free_ports(3)
    with s3_server() as s3:
        s3.make_bucket("models")
        s3.upload("models", ROOT / "examples" / "repository", "repo/")
        variables = [f"{name}={value}" for name, value in KEYS.items()]
        container = Container(
            cache,
            *("env", *variables, "NAIAD_CLUSTER_DIR=/cache", "tritonserver"),
            f"--model-repository={s3.url('models', 'repo')}",
            "--repository-cache-directory=/cache",
            *("--model-control-mode=explicit", "--load-model=add_sub"),
            *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
            fs_group="2000",
        )
        server = Server.__new__(Server)
        server.http, server.container = http, container
        try:
            server.wait_until_ready()
            tensor = {"datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
            inputs = [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")]
            response = server.post("/v2/models/add_sub/infer", {"inputs": inputs})
            assert response["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]
        finally:
            output = server.stop()
    assert "successfully loaded 'add_sub'" in output


def test_the_state_of_a_cluster_may_be_the_volume_itself(cache: Path) -> None:
    code = "from naiad.cluster.ray_node import take_environment_token as take; print(take())"
    variables = ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={'0' * 64}", "NAIAD_CLUSTER_DIR=/cache"]
    container = Container(cache, "env", *variables, "python", "-c", code, fs_group="2000")
    assert container.output().strip() == "/cache/token"
