"""Deploying through the console's API, as a script does it: files go in, a model serves, and what
fails leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests import onnx_file
from tests.server.deploy_client import DeployClient
from tests.server.gates import eventually
from tests.server.harness import (
    Server,
    free_ports,
    naiad,
    naiad_command,
    naiad_environment,
    port_flags,
)
from tests.server.other_user import Call, ask_as_nobody, guarded_calls

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "repository"
DOUBLE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy() * 2)])
            for request in requests
            for x in [pb_utils.get_input_tensor_by_name(request, "x")]
        ]
"""
BROKEN = """\
class TritonPythonModel:
    def initialize(self, args):
        raise KeyError('TOKEN')

    def execute(self, requests):
        pass
"""
SLOW = DOUBLE.replace(
    "    def execute",
    "    def initialize(self, args):\n        __import__('time').sleep(600)\n\n    def execute",
)
TENSORS = {
    "inputs": [{"name": "x", "data_type": "FP32", "dims": [4]}],
    "outputs": [{"name": "y", "data_type": "FP32", "dims": [4]}],
}
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copytree(EXAMPLES / "add_sub", folder / "add_sub")
    return folder


@pytest.fixture(params=["none", "explicit", "poll"])
def server(request: pytest.FixtureRequest, repository: Path) -> Iterator[Server]:
    options = [f"--model-control-mode={request.param}", "--exit-on-error=false"]
    with naiad([str(repository)], options) as started:
        yield started


@pytest.fixture
def plain_server(repository: Path) -> Iterator[Server]:
    with naiad([str(repository)], []) as started:
        yield started


def visible_files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


def left_behind(repository: Path) -> list[str]:
    hidden = repository / ".naiad"
    return sorted(
        path.relative_to(hidden).as_posix()
        for path in (hidden.rglob("*") if hidden.exists() else ())
        if path.is_file()
    )


def test_a_python_model_serves_and_an_edit_is_a_diff(server: Server, repository: Path) -> None:
    client = DeployClient(server)
    source = {"kind": "files", "value": client.upload({"model.py": DOUBLE.encode()})}
    status, found = client.call("POST", "inspect", {"source": source})
    assert (status, found["backend"]) == (200, "python")
    assert found["files"][0]["target"] == "1/model.py"
    spec = {"source": source, "backend": "python", "max_batch_size": 8, **TENSORS}
    preview = client.preview("double", **spec)
    assert preview["problems"] == []
    assert preview["is_new"]
    assert not (repository / "double").exists()
    done = client.deploy("double", **spec)
    assert done["state"] == "done", done
    assert server.post("/v2/models/double/infer", BODY)[0] == 200
    assert (repository / "double/config.pbtxt").read_text() == preview["text"]
    assert left_behind(repository) == []

    form = client.call("GET", "models/double/form")[1]
    edit = {"source": {"kind": "repository", "value": "double"}, "base": form["base"]}
    edit |= {"instances": [{"count": 2, "kind": "KIND_CPU"}], "batching": {}}
    shown = client.preview("double", **edit)
    assert "+instance_group [ { count: 2 kind: KIND_CPU } ]\n" in shown["diff"]
    assert "-" not in {line[:1] for line in shown["diff"].splitlines()[2:]}
    assert client.deploy("double", **edit)["state"] == "done"
    rows = json.loads(server.get("/console/api/state")[1])["models"]
    assert [len(row["instances"]) for row in rows if row["name"] == "double"] == [2]


def test_a_model_that_fails_leaves_nothing_behind(server: Server, repository: Path) -> None:
    client = DeployClient(server)
    before = visible_files(repository)
    draft = client.upload({"model.py": BROKEN.encode()})
    source = {"kind": "files", "value": draft}
    failed = client.deploy("broken", source=source, backend="python", **TENSORS)
    assert failed["state"] == "failed"
    assert failed["reason_line"] == "KeyError 'TOKEN' (model.py:3)"
    assert failed["is_restored"]
    assert any("TOKEN" in line["message"] for line in failed["lines"])
    assert visible_files(repository) == before
    names = [row["name"] for row in json.loads(server.get("/console/api/state")[1])["models"]]
    assert "broken" not in names
    # The files are still there for another attempt, until they are discarded.
    assert client.call("GET", f"drafts/{draft}")[0] == 200
    assert client.call("DELETE", f"drafts/{draft}")[0] == 200
    assert left_behind(repository) == []


def test_an_edit_that_fails_keeps_what_serves(server: Server, repository: Path) -> None:
    client = DeployClient(server)
    client.call("POST", "models/add_sub/load")
    before = (repository / "add_sub/config.pbtxt").read_bytes()
    files = visible_files(repository)
    source = {"kind": "files", "value": client.upload({"model.py": BROKEN.encode()})}
    failed = client.deploy("add_sub", source=source, version=2)
    assert failed["state"] == "failed"
    assert failed["is_restored"]
    assert (repository / "add_sub/config.pbtxt").read_bytes() == before
    assert visible_files(repository) == files
    eventually(lambda: server.is_ready("/v2/models/add_sub/ready"), "add_sub is ready")
    row = next(
        row
        for row in json.loads(server.get("/console/api/state")[1])["models"]
        if row["name"] == "add_sub"
    )
    assert (row["state"], row["reason"]) == ("READY", "")


def test_a_problem_names_its_field_and_its_line(plain_server: Server, repository: Path) -> None:
    client = DeployClient(plain_server)
    text = (repository / "add_sub/config.pbtxt").read_text()
    source = {"kind": "repository", "value": "add_sub"}
    shown = client.preview("add_sub", source=source, text=text.replace("TYPE_FP32", "TYPE_X", 1))
    (problem, *_) = shown["problems"]
    assert problem["line"] == text[: text.index("TYPE_FP32")].count("\n") + 1
    assert problem["path"].startswith("input[0]")
    bad = [{"name": "INPUT0", "data_type": "FP32", "dims": [0]}]
    shown = client.preview("add_sub", source=source, inputs=bad)
    assert any(row["path"] == "input[0].dims[0]" for row in shown["problems"]), shown["problems"]
    failed = client.deploy("add_sub", source=source, inputs=bad)
    assert failed["state"] == "failed"
    assert failed["problems"]
    assert (repository / "add_sub/config.pbtxt").read_text() == text


def test_an_onnx_file_tells_its_tensors_and_the_command_line_does_the_same(
    plain_server: Server, repository: Path, tmp_path: Path
) -> None:
    client = DeployClient(plain_server)
    content = onnx_file.identity("FP32", ["N", 4])
    source = {"kind": "files", "value": client.upload({"My Model.onnx": content})}
    found = client.call("POST", "inspect", {"source": source})[1]
    assert (found["backend"], found["name"]) == ("onnxruntime", "my-model")
    spec = {
        "source": source, "backend": found["backend"],
        **{key: found["config"][key] for key in ("max_batch_size", "inputs", "outputs")},
    }  # fmt: skip
    preview = client.preview("my-model", **spec)
    assert preview["problems"] == []
    assert preview["memory"]["total_bytes"] > len(content)
    (tmp_path / "My Model.onnx").write_bytes(content)
    # The command is run up to the check; the load would need the address of a shell's own server.
    script = preview["command"].partition("naiad check")[0]
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    assert (repository / "my-model/config.pbtxt").read_text() == preview["text"]
    assert (repository / "my-model/1/model.onnx").read_bytes() == content
    assert client.call("POST", "models/my-model/load")[0] == 200
    assert plain_server.is_ready("/v2/models/my-model/ready")


def test_a_whole_model_folder_keeps_its_versions_and_an_edit_adds_none(
    plain_server: Server, repository: Path
) -> None:
    client = DeployClient(plain_server)
    config = 'backend: "python"\nmax_batch_size: 8\n'
    for kind, name in (("input", "x"), ("output", "y")):
        config += f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
    files = {"net/config.pbtxt": config.encode(), "net/3/model.py": DOUBLE.encode()}
    source = {"kind": "files", "value": client.upload(files)}
    assert client.deploy("net", source=source)["state"] == "done"
    environment = {"kind": "requirements", "requirements": "# nothing\n"}
    edit = {"source": {"kind": "repository"}, "max_batch_size": 4}
    done = client.deploy("net", environment=environment, **edit)
    assert done["state"] == "done", done
    shown = {"net/config.pbtxt", "net/3/model.py"}
    own = {path for path in visible_files(repository) if path.startswith("net/")}
    assert own == {*shown, "net/requirements.txt"}
    assert not (repository / "net/1").exists()
    assert client.deploy("net", environment={"kind": "server"}, **edit)["state"] == "done"
    assert {path for path in visible_files(repository) if path.startswith("net/")} == shown


def test_the_catalogue_is_deployed_without_a_file(plain_server: Server) -> None:
    client = DeployClient(plain_server)
    names = [item["name"] for item in client.call("GET", "deploy")[1]["catalogue"]]
    for name in ("double", "double-onnx"):
        assert name in names
        done = client.deploy(name, source={"kind": "catalogue", "value": name})
        assert done["state"] == "done", done
        assert plain_server.post(f"/v2/models/{name}/infer", BODY)[0] == 200


def test_an_upload_goes_on_where_it_stopped_after_the_server_was_killed(repository: Path) -> None:
    ports = free_ports()
    command = naiad_command("serve", f"--model-repository={repository}", *port_flags(ports))
    first = Server(command, ports, naiad_environment()).wait_started()
    client = DeployClient(first)
    draft, content = client.new_draft(), DOUBLE.encode()
    status, body = client.put(draft, "model.py", content[:100], 0, len(content))
    assert (status, body["files"][0]["received"]) == (200, 100)
    first.signal_until_exit(signal.SIGKILL)
    first.stop()
    second = Server(command, ports, naiad_environment()).wait_started()
    try:
        (file,) = client.call("GET", f"drafts/{draft}")[1]["files"]
        assert (file["received"], file["size"]) == (100, len(content))
        assert client.put(draft, "model.py", content[100:], 50, len(content))[0] == 400
        assert client.put(draft, "model.py", content[100:], 100, len(content))[0] == 200
        source = {"kind": "files", "value": draft}
        done = client.deploy("double", source=source, backend="python", **TENSORS)
        assert done["state"] == "done", done
    finally:
        second.stop()


def test_a_deployment_that_the_kill_of_the_server_interrupts_is_undone(repository: Path) -> None:
    ports = free_ports()
    command = naiad_command("serve", f"--model-repository={repository}", *port_flags(ports))
    first = Server(command, ports, naiad_environment()).wait_started()
    client = DeployClient(first)
    source = {"kind": "files", "value": client.upload({"model.py": SLOW.encode()})}
    spec = {"source": source, "backend": "python", **TENSORS}
    assert client.call("POST", "models/slow/deploy", spec)[0] == 200
    eventually(lambda: (repository / "slow/config.pbtxt").exists(), "the files are in place")
    first.signal_until_exit(signal.SIGKILL)
    first.stop()
    assert (repository / "slow").exists()
    second = Server(command, ports, naiad_environment()).wait_started()
    try:
        assert not (repository / "slow").exists()
        assert second.is_ready("/v2/models/add_sub/ready")
    finally:
        second.stop()


def zip_of(members: dict[str, bytes], link: str = "") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc/passwd")
    return out.getvalue()


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("../../evil.py", b"x", "it leads out of its folder"),
        ("/etc/evil", b"x", "it must be relative"),
        (".hidden", b"x", "names that begin with a dot are hidden"),
        ("model.pkl", b"x", "--console-allow-pickle"),
        ("weights", pickle.dumps({"a": 1}), "--console-allow-pickle"),
        ("model.pt", zip_of({"archive/data.pkl": b"x"}), "torch.save wrote it"),
        ("model.zip", zip_of({"../evil.py": b"x"}), "it leads out of its folder"),
        ("model.zip", zip_of({"model.py": b"x"}, link="link"), "'link' is a link or a device"),
        ("model.zip", zip_of({"zeros": bytes(100 << 20)}), "as a zip bomb does"),
        ("model.zip", zip_of({"model.pickle": b"x"}), "--console-allow-pickle"),
        ("model.zip", b"PK\x03\x04 no zip", "it cannot be read"),
    ],
)
def test_refuses_what_is_dangerous_with_the_reason(
    plain_server_once: Server, path: str, content: bytes, message: str
) -> None:
    client = DeployClient(plain_server_once)
    draft = client.new_draft()
    status, body = client.put(draft, path, content)
    assert status == 400
    assert message in body["error"]
    assert client.call("GET", f"drafts/{draft}")[1]["files"] == []


@pytest.fixture(scope="module")
def plain_server_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("uploads") / "repository"
    folder.mkdir()
    with naiad([str(folder)], ["--console-max-upload-size=200000000"]) as started:
        yield started


def test_refuses_files_above_the_limit_before_they_are_sent(plain_server_once: Server) -> None:
    client = DeployClient(plain_server_once)
    status, body = client.put(client.new_draft(), "model.onnx", b"x", 0, 200_000_001)
    assert status == 400
    assert "--console-max-upload-size allows 200000000" in body["error"]


@pytest.mark.parametrize(
    "name", ["A", "Upper", "x", "a_b", "a" * 64, "-ab", "..", "a b", ".naiad", "a/../b", "\0ab"]
)
def test_refuses_a_name_that_is_not_one(plain_server_once: Server, name: str) -> None:
    client = DeployClient(plain_server_once)
    spec = {"source": {"kind": "catalogue", "value": "double"}}
    status, body = client.call("POST", f"models/{quote(name, safe='')}/preview", spec)
    assert status == 400
    assert "2 to 63 lowercase letters" in body["error"]


def test_refuses_an_edit_of_a_file_that_somebody_else_has_changed(
    plain_server: Server, repository: Path
) -> None:
    client = DeployClient(plain_server)
    form = client.call("GET", "models/add_sub/form")[1]
    with (repository / "add_sub/config.pbtxt").open("a") as file:
        file.write("# changed\n")
    spec = {"source": {"kind": "repository"}, "base": form["base"], "max_batch_size": 4}
    failed = client.deploy("add_sub", **spec)
    assert failed["state"] == "failed"
    assert "was changed by somebody else" in failed["error"]
    assert (repository / "add_sub/config.pbtxt").read_text().endswith("# changed\n")


def test_a_foreign_page_cannot_deploy(plain_server: Server) -> None:
    token = plain_server.console_headers()
    client = DeployClient(plain_server, {"Origin": "http://evil.example", **token})
    assert client.call("POST", "drafts", {})[0] == 403
    assert client.call("PUT", "drafts/0/file?path=a&offset=0&size=1", b"x")[0] == 403
    plain = DeployClient(plain_server, {"Content-Type": "text/plain", **token})
    assert plain.call("POST", "models/add_sub/load", {})[0] == 403


def test_deploying_is_off_where_files_in_requests_are(repository: Path) -> None:
    with naiad([str(repository)], ["--allow-file-override=false"]) as server:
        client = DeployClient(server)
        info = client.call("GET", "deploy")[1]
        assert (info["is_allowed"], client.call("POST", "drafts", {})[0]) == (False, 403)
        assert "--allow-file-override=true" in info["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_cannot_deploy(plain_server: Server, repository: Path) -> None:
    """Not on any route, not with the token, and not by leaving before the response."""
    token = plain_server.console_headers()
    assert token
    for headers in ({}, token):
        calls = guarded_calls(headers)
        assert len(calls) > 15
        for call, answer in zip(calls, ask_as_nobody(plain_server, calls), strict=True):
            assert answer.status == 403, (call, answer)
            reason = "runs as the user 'root'" if headers else "server's token"
            assert reason in answer.body, (call, answer)
    source = json.dumps({"source": {"kind": "catalogue", "value": "double"}})
    deploy = Call("POST", "/console/api/models/double/deploy", token, source)
    ask_as_nobody(plain_server, [deploy] * 20, leaves=True)
    info, state = ask_as_nobody(
        plain_server,
        [Call("GET", "/console/api/deploy", token), Call("GET", "/console/api/state")],
    )
    assert not json.loads(info.body)["is_allowed"]
    assert "comes from the user 'nobody'" in json.loads(info.body)["reason"]
    # Reading and inferring stay open, as they are without keys.
    assert state.status == 200
    assert not (repository / "double").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_use_a_session(repository: Path, tmp_path: Path) -> None:
    """The cookie of a browser, and even the secret of its page. Requests with a session go to the
    server process, wherever their connection is."""
    key = create_key(tmp_path / "keys.json", "owner", "--scopes", "statistics,keys")
    flags = [f"--api-key-file={tmp_path / 'keys.json'}", "--frontend-processes=2"]
    with naiad([str(repository)], flags) as server:
        body = json.dumps({"key": key["Authorization"].removeprefix("Bearer ")}).encode()
        request = urllib.request.Request(f"http://{server.http}/console/api/session", body)
        with urllib.request.urlopen(request, timeout=60) as response:
            cookie = response.headers["Set-Cookie"].partition(";")[0]
            secret = json.loads(response.read())["secret"]
        stolen = {"Cookie": cookie, "x-naiad-console": secret}
        calls = [
            Call("GET", "/console/api/state", stolen),
            Call("GET", "/console/api/events", stolen),
            Call("POST", "/key/generate", stolen, '{"key_alias": "mine"}'),
            Call("POST", "/v2/models/add_sub/infer", stolen, "{}"),
        ]
        for answer in ask_as_nobody(server, calls):
            assert (answer.status, "belongs to another user" in answer.body) == (401, True), answer
        owner = DeployClient(server, stolen)
        assert owner.call("GET", "state")[0] == 200
        assert owner.call("GET", "session")[1]["change_refusal"] == ""


def test_a_request_through_a_proxy_cannot_deploy(plain_server: Server) -> None:
    token = plain_server.console_headers()
    for field in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Via"):
        client = DeployClient(plain_server, {field: "203.0.113.9", **token})
        for call in guarded_calls({}):
            status, body = client.call(call.method, call.path.removeprefix("/console/api/"), {})
            assert status == 403
            assert field.lower() in body["error"]
            assert "--api-key-file" in body["error"]


def test_only_a_page_with_the_token_may_change_the_server(
    plain_server: Server, repository: Path
) -> None:
    for token in ("", "x" * 22):
        client = DeployClient(plain_server, {"x-naiad-console": token} if token else {})
        for call in guarded_calls({}):
            status, body = client.call(call.method, call.path.removeprefix("/console/api/"), {})
            assert (status, "'naiad console'" in body["error"]) == (403, True), call
        assert client.call("GET", "state")[0] == 200
        assert "server's token" in client.call("GET", "session")[1]["change_refusal"]
    assert DeployClient(plain_server).call("GET", "session")[1]["change_refusal"] == ""


def run_console(*options: str) -> subprocess.CompletedProcess[str]:
    command = naiad_command("console", *options)
    return subprocess.run(command, env=naiad_environment(), capture_output=True, text=True)


def test_the_link_is_printed_at_start_and_by_the_command(plain_server: Server) -> None:
    link = plain_server.console_link()
    port = f"--port={plain_server.http_port}"
    assert run_console(port).stdout.strip() == link
    token = run_console("--token", port).stdout.strip()
    assert plain_server.console_headers() == {"x-naiad-console": token}
    # The log that other users of the machine may read over HTTP does not have it.
    status, log = plain_server.get("/console/api/log")
    assert (status, token.encode() in log) == (200, False)
    other = run_console("--port=1")
    assert (other.returncode, "no server on port 1" in other.stderr) == (1, True)


def test_models_load_and_unload_in_every_control_mode(server: Server) -> None:
    client = DeployClient(server)
    assert client.call("POST", "models/add_sub/load")[0] == 200
    assert server.is_ready("/v2/models/add_sub/ready")
    assert client.call("POST", "models/add_sub/unload")[0] == 200
    assert not server.is_ready("/v2/models/add_sub/ready")
    status, body = client.call("POST", "models/nowhere/load")
    assert (status, "failed to poll from model repository" in body["error"]) == (500, True)


def create_key(file: Path, name: str, *options: str) -> dict[str, str]:
    command = naiad_command("key", "create", name, *options, "--api-key-file", str(file))
    done = subprocess.run(
        command, env=naiad_environment(), capture_output=True, text=True, check=True
    )
    return {"Authorization": f"Bearer {done.stdout.strip()}"}


def test_a_key_deploys_only_models_of_its_patterns(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    reader = create_key(file, "reader")
    owner = create_key(file, "owner", "--scopes", "model-repository", "--models", "net-*")
    spec = {"source": {"kind": "catalogue", "value": "double"}}
    with naiad([str(repository)], [f"--api-key-file={file}"]) as server:
        assert DeployClient(server).call("POST", "drafts", {})[0] == 401
        status, body = DeployClient(server, reader).call("POST", "models/net-1/deploy", spec)
        assert (status, "scope 'model-repository'" in body["error"]) == (403, True)
        client = DeployClient(server, owner)
        assert client.call("POST", "models/other/deploy", spec)[0] in (400, 404)
        assert client.call("GET", "models/add_sub/form")[0] in (400, 404)
        assert client.call("POST", "models/add_sub/unload")[0] in (400, 404)
        done = client.deploy("net-1", **spec)
        assert done["state"] == "done", done
    assert not (repository / "other").exists()
