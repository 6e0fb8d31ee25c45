"""The deploy page in a browser: from a dropped file to a response."""

from __future__ import annotations

import base64
import io
import pickle
import re
import shutil
import signal
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import Page, Route, expect

from naiad.keys.api_class import SCOPES
from tests import onnx_file
from tests.browser.conftest import EXAMPLES, ROOT, OpenPage
from tests.browser.test_keys import create_key, sign_in
from tests.browser.test_playground import SEVEN, draw
from tests.server.harness import (
    Server,
    free_ports,
    naiad,
    naiad_command,
    naiad_environment,
    port_flags,
)

DIGITS = ROOT / "examples" / "digits" / "test_digits.npz"
BROKEN = """\
class TritonPythonModel:
    def initialize(self, args):
        raise KeyError("TOKEN")

    def execute(self, requests):
        pass
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "repository"
    folder.mkdir()
    for name in ("add_sub", "digits", "words"):
        shutil.copytree(EXAMPLES / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with naiad([str(repository)], []) as started:
        yield started


def drop(page: Page, name: str, content: bytes) -> None:
    """Drops a file on the page, as a mouse does."""
    transfer = page.evaluate_handle(
        """([name, text]) => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(text), char => char.charCodeAt(0));
            transfer.items.add(new File([bytes], name));
            return transfer;
        }""",
        [name, base64.b64encode(content).decode()],
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": transfer})


def press_deploy(page: Page, text: str = "Deploy") -> None:
    button = page.get_by_role("button", name=text, exact=True)
    expect(button).to_be_enabled(timeout=30_000)
    button.click()


def digit_model() -> bytes:
    """A small network that reads digits of 32 x 32 pixels, trained on the examples' digits."""
    torch = pytest.importorskip("torch", reason="make frameworks installs torch")
    torch.manual_seed(3)
    data = np.load(DIGITS)
    images = torch.tensor(data["images"], dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data["labels"], dtype=torch.long)
    model = torch.nn.Sequential(
        torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 48), torch.nn.ReLU(),
        torch.nn.Linear(48, 10),
    )  # fmt: skip
    large = torch.nn.functional.interpolate(images, size=(32, 32), mode="bilinear")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(large), labels).backward()
        optimizer.step()
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is, but people have files
        torch.jit.save(torch.jit.script(model.eval()), out)
    return out.getvalue()


def test_a_torchscript_model_is_dropped_and_reads_a_seven(
    server: Server, open_page: OpenPage, repository: Path
) -> None:
    content = digit_model()
    page = open_page(server, "deploy")
    drop(page, "model.pt", content)
    page.get_by_label("Shape of an example input").fill("1, 1, 32, 32")
    page.get_by_role("button", name="Read the model").click()
    page.locator("[data-path=name]").fill("own-digits")
    tensors = page.get_by_role("region", name="Inputs and outputs")
    expect(tensors).to_contain_text("A request sends the shape [batch, 1, 32, 32].")
    expect(tensors).to_contain_text("A request gets the shape [batch, 10].")
    press_deploy(page)
    expect(page.get_by_role("region", name="Deployment")).to_contain_text(
        "own-digits serves.", timeout=60_000
    )
    assert (repository / "own-digits/1/model.pt").read_bytes() == content
    page.get_by_role("link", name="Try it in the playground").click()
    draw(page, SEVEN)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_have_text("7")


def test_a_checkpoint_folder_is_deployed_and_chats(
    server: Server, open_page: OpenPage, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="make test-llm installs torch and transformers")
    pytest.importorskip("transformers", reason="make test-llm installs torch and transformers")
    from tests.server.llm_checkpoint import write_checkpoint

    checkpoint = write_checkpoint(tmp_path / "tiny-chat")
    page = open_page(server, "deploy")
    page.get_by_label("Folder of the model").set_input_files(str(checkpoint))
    expect(page.locator("[data-path=name]")).to_have_value("tiny-chat", timeout=30_000)
    expect(page.get_by_role("region", name="What was found")).to_contain_text("Language model")
    expect(page.get_by_role("region", name="Engine")).to_be_visible()
    for absent in ("Inputs and outputs", "Python environment", "Batching"):
        expect(page.get_by_role("region", name=absent)).to_have_count(0)
    press_deploy(page)
    expect(page.get_by_text("tiny-chat serves.")).to_be_visible(timeout=90_000)
    page.get_by_role("link", name="Try it in the playground").click()
    page.get_by_label("Most tokens").fill("8")
    page.get_by_label("Message").fill("Hello")
    page.keyboard.press("Enter")
    reply = page.locator(".turn.assistant").first
    expect(reply).to_contain_text("first token after", timeout=60_000)
    expect(page.locator(".turn.refused")).to_have_count(0)


def test_a_broken_config_shows_its_line(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "deploy/add_sub")
    page.get_by_role("button", name="Edit the text").click()
    editor = page.get_by_label("Text of config.pbtxt")
    text = editor.input_value()
    line = text[: text.index("TYPE_FP32")].count("\n") + 1
    editor.fill(text.replace("TYPE_FP32", "TYPE_FLOAT32", 1))
    problems = page.get_by_role("region", name="Problems")
    expect(problems).to_contain_text(f"config.pbtxt:{line}", timeout=20_000)
    expect(problems).to_contain_text("did you mean TYPE_FP32?")
    expect(page.get_by_role("button", name="Save and load")).to_be_disabled()
    editor.fill(text)
    expect(page.get_by_text("Nothing has changed.")).to_be_visible(timeout=20_000)


def test_an_edit_shows_its_diff_and_is_written(
    server: Server, open_page: OpenPage, repository: Path
) -> None:
    config = repository / "words/config.pbtxt"
    before = config.read_text()
    page = open_page(server, "models/words")
    page.get_by_role("link", name="Edit").click()
    page.get_by_role("spinbutton", name="Instances").fill("2")
    diff = page.get_by_role("region", name="Changes of config.pbtxt")
    expect(diff.locator(".added")).to_contain_text("count: 2", timeout=20_000)
    press_deploy(page, "Save and load")
    expect(page.get_by_text("words serves.")).to_be_visible(timeout=30_000)
    assert "count: 2" in config.read_text()
    page.get_by_role("link", name="Address and state").click()
    table = page.get_by_role("region", name="Instances")
    expect(table.locator("tbody tr")).to_have_count(2, timeout=20_000)
    config.write_text(before)


def test_a_problem_is_shown_at_its_field(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "deploy/digits")
    dimension = page.get_by_role("spinbutton", name="Dimension 1 of image")
    dimension.fill("0")
    expect(dimension).to_have_attribute("aria-invalid", "true", timeout=20_000)
    expect(page.locator(".field-problem")).to_contain_text("must be integer >= 1")
    page.get_by_role("button", name="Go to the field").click()
    expect(dimension).to_be_focused()
    dimension.fill("1")
    expect(page.locator(".field-problem")).to_have_count(0, timeout=20_000)


def test_a_model_that_fails_shows_why_and_leaves_nothing(
    server: Server, open_page: OpenPage, repository: Path
) -> None:
    page = open_page(server, "deploy")
    drop(page, "model.py", BROKEN.encode())
    page.locator("[data-path=name]").fill("failing")
    expect(page.get_by_role("region", name="Python environment")).to_be_visible()
    for kind in ("input", "output"):
        page.get_by_role("button", name=f"Add {kind}").click()
        page.keyboard.type(kind[0])
    press_deploy(page)
    deployment = page.get_by_role("region", name="Deployment")
    expect(deployment).to_contain_text("KeyError 'TOKEN' (model.py:3)", timeout=60_000)
    expect(deployment).to_contain_text("The repository is as it was before.")
    expect(deployment.get_by_role("region", name="Log of the worker")).to_contain_text("TOKEN")
    assert not (repository / "failing").exists()
    expect(page.locator("[data-path=name]")).to_have_value("failing")


GREETS = """\
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        text = f"{os.environ['GREETING']} from {len(os.sched_getaffinity(0))} core"
        output = pb_utils.Tensor("o", np.array([text], dtype=np.object_))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""


def test_cores_memory_variables_and_an_index_are_filled_in(
    server: Server, open_page: OpenPage, repository: Path
) -> None:
    page = open_page(server, "deploy")
    drop(page, "model.py", GREETS.encode())
    page.locator("[data-path=name]").fill("greeter")
    for kind in ("input", "output"):
        page.get_by_role("button", name=f"Add {kind}").click()
        page.keyboard.type(kind[0])
    page.locator('[data-path="output[0].data_type"]').select_option("BYTES")
    page.get_by_label("More packages, by requirements.txt").check()
    page.get_by_label("requirements.txt", exact=True).fill("msgspec")
    page.get_by_label("Extra package index").fill("http://127.0.0.1:9/simple")
    part = page.get_by_role("region", name="Cores, memory and variables")
    cores = part.get_by_label("Cores of each instance")
    memory = part.get_by_label("Memory of each instance, at most")
    memory.fill("4")
    expect(part.locator(".field-problem")).to_contain_text("such as 4GiB", timeout=20_000)
    memory.fill("1GiB")
    cores.fill("1")
    part.get_by_role("button", name="Add a variable").click()
    page.keyboard.type("GREETING")
    part.get_by_label("Value of variable 1").fill("hello")
    press_deploy(page)
    expect(page.get_by_text("greeter serves.")).to_be_visible(timeout=90_000)
    config = (repository / "greeter/config.pbtxt").read_text()
    for name, value in (("CPU_CORES", "1"), ("MEMORY_LIMIT", "1GiB"), ("ENV:GREETING", "hello")):
        assert re.search(rf'"{name}"[^"]*string_value: "{value}"', config), config
    requirements = (repository / "greeter/requirements.txt").read_text()
    assert requirements == "--extra-index-url http://127.0.0.1:9/simple\nmsgspec"
    body = {"inputs": [{"name": "i", "datatype": "FP32", "shape": [1], "data": [0]}]}
    assert b"hello from 1 core" in server.post("/v2/models/greeter/infer", body)[1]

    # The form of the model that exists shows the same.
    page.get_by_role("link", name="Address and state").click()
    page.get_by_role("link", name="Edit").click()
    expect(cores).to_have_value("1")
    expect(memory).to_have_value("1GiB")
    expect(part.get_by_label("Value of GREETING")).to_have_value("hello")
    expect(page.get_by_label("Extra package index")).to_have_value("http://127.0.0.1:9/simple")
    expect(page.get_by_label("requirements.txt", exact=True)).to_have_value("msgspec")
    part.get_by_role("button", name="Remove variable GREETING").click()
    removed = page.locator(".removed").filter(has_text="ENV:GREETING")
    expect(removed).to_have_count(1, timeout=20_000)


def test_an_archive_of_an_environment_is_uploaded(
    server: Server, open_page: OpenPage, repository: Path, tmp_path: Path
) -> None:
    """The interpreter is a script, because a real one would be as large as Python itself."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nGREETING=packed exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "bin", "bin")
    page = open_page(server, "deploy")
    drop(page, "model.py", GREETS.encode())
    page.locator("[data-path=name]").fill("packed")
    for kind in ("input", "output"):
        page.get_by_role("button", name=f"Add {kind}").click()
        page.keyboard.type(kind[0])
    page.locator('[data-path="output[0].data_type"]').select_option("BYTES")
    page.get_by_label("An archive of an environment (conda-pack)").check()
    page.get_by_label("Archive", exact=True).set_input_files(str(tmp_path / "env.tar.gz"))
    expect(page.get_by_text("env.tar.gz is uploaded.")).to_be_visible(timeout=20_000)
    written = page.get_by_role("region", name="config.pbtxt")
    expect(written).to_contain_text("EXECUTION_ENV_PATH", timeout=20_000)
    press_deploy(page)
    expect(page.get_by_text("packed serves.")).to_be_visible(timeout=60_000)
    body = {"inputs": [{"name": "i", "datatype": "FP32", "shape": [1], "data": [0]}]}
    assert b"packed from" in server.post("/v2/models/packed/infer", body)[1]
    assert (repository / "packed/environment.tar.gz").exists()


def test_tensor_parallel_is_offered_where_there_are_gpus(
    server: Server, open_page: OpenPage, tmp_path: Path
) -> None:
    """The machine of the tests has no GPU, so the page is told that there are two."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text('{"model_type": "llama"}')
    page = open_page(server, "models")
    for gpus, count in (([], 0), ([0, 1], 1)):

        def fulfil(route: Route, *, gpus: list[int] = gpus) -> None:
            route.fulfill(json={**route.fetch().json(), "gpus": gpus})

        page.route("**/console/api/deploy", fulfil)
        page.goto(f"http://{server.http}/console#/deploy")
        page.reload()
        page.get_by_role("tab", name="Folder on the server").click()
        page.get_by_label("Path of a checkpoint on the server").fill(str(tmp_path / "tiny"))
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_role("region", name="Engine")).to_be_visible(timeout=20_000)
        field = page.get_by_label("GPUs that share the model")
        expect(field).to_have_count(count)
    field.fill("2")
    written = page.get_by_role("region", name="config.pbtxt")
    expect(written).to_contain_text("tensor_parallel_size", timeout=20_000)


def test_a_pickle_is_refused_with_the_reason(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "deploy")
    drop(page, "model.pkl", pickle.dumps({"weights": [1, 2]}))
    alert = page.get_by_role("alert").filter(has_text="is refused")
    expect(alert).to_contain_text("--console-allow-pickle=true", timeout=20_000)


def test_a_name_that_exists_becomes_a_new_version(
    server: Server, open_page: OpenPage, repository: Path
) -> None:
    page = open_page(server, "deploy")
    expect(page.locator("#connection")).to_have_text("Ready")
    drop(page, "counted.onnx", (repository / "digits/1/model.onnx").read_bytes())
    name = page.locator("[data-path=name]")
    expect(name).to_have_value("counted", timeout=20_000)
    name.fill("digits")
    expect(page.get_by_text("digits exists: this becomes version 2 of it.")).to_be_visible()
    press_deploy(page)
    expect(page.get_by_text("digits serves.")).to_be_visible(timeout=30_000)
    assert (repository / "digits/2/model.onnx").exists()
    assert server.get("/v2/models/digits/versions/2/ready")[0] == 200
    shutil.rmtree(repository / "digits/2")


def test_the_form_survives_a_server_that_was_killed(open_page: OpenPage, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(EXAMPLES / "add_sub", repository / "add_sub")
    ports = free_ports()
    command = naiad_command("serve", f"--model-repository={repository}", *port_flags(ports))
    first = Server(command, ports, naiad_environment()).wait_started()
    page = open_page(first, "deploy")
    drop(page, "echo.onnx", onnx_file.identity("FP32", ["N", 4]))
    name = page.locator("[data-path=name]")
    expect(name).to_have_value("echo", timeout=30_000)
    name.fill("echo-again")
    page.get_by_role("spinbutton", name="Instances").fill("2")
    first.signal_until_exit(signal.SIGKILL)
    first.stop()
    expect(page.locator("#connection")).to_contain_text("Reconnecting", timeout=20_000)
    page.get_by_role("spinbutton", name="Largest batch").fill("16")
    second = Server(command, ports, naiad_environment()).wait_started()
    try:
        expect(page.locator("#connection")).not_to_contain_text("Reconnecting", timeout=20_000)
        expect(name).to_have_value("echo-again")
        press_deploy(page)
        expect(page.get_by_text("echo-again serves.")).to_be_visible(timeout=60_000)
        config = (repository / "echo-again/config.pbtxt").read_text()
        assert "max_batch_size: 16" in config
        assert "count: 2" in config
    finally:
        second.stop()


def test_two_browsers_do_not_overwrite_each_other(
    server: Server, open_page: OpenPage, repository: Path
) -> None:
    config = repository / "add_sub/config.pbtxt"
    before = config.read_text()
    first, second = open_page(server, "deploy/add_sub"), open_page(server, "deploy/add_sub")
    for page, size in ((first, "5"), (second, "7")):
        page.get_by_role("spinbutton", name="Largest batch").fill(size)
        expect(page.locator(".added").first).to_be_visible(timeout=20_000)
    press_deploy(first, "Save and load")
    expect(first.get_by_text("add_sub serves.")).to_be_visible(timeout=30_000)
    second.get_by_role("button", name="Save and load").click()
    expect(second.get_by_role("region", name="Deployment")).to_contain_text(
        "was changed by somebody else", timeout=20_000
    )
    assert re.search(r"max_batch_size: 5\b", config.read_text())
    config.write_text(before)


def test_the_keyboard_alone_deploys_from_the_catalogue(server: Server, open_page: OpenPage) -> None:
    page = open_page(server, "deploy")
    page.get_by_role("tab", name="Files").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Catalogue")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Use double", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("[data-path=name]")).to_have_value("double", timeout=20_000)
    button = page.get_by_role("button", name="Deploy", exact=True)
    expect(button).to_be_enabled(timeout=30_000)
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Try it in the playground")).to_be_focused(timeout=30_000)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Response")).to_contain_text("y")


def test_the_keys_that_may_use_a_model_are_ticked(open_page: OpenPage, tmp_path: Path) -> None:
    file, repository = tmp_path / "keys.json", tmp_path / "repository"
    repository.mkdir()
    admin = create_key(file, "admin", ",".join(SCOPES))
    create_key(file, "team", "inference", "--models", "other")
    with naiad([str(repository)], [f"--api-key-file={file}"]) as server:
        page = open_page(server, "deploy")
        sign_in(page, admin)
        page.get_by_role("tab", name="Catalogue").click()
        page.get_by_role("button", name="Use double", exact=True).click()
        expect(page.get_by_label("admin by its pattern *")).to_be_disabled(timeout=20_000)
        page.get_by_label("team may use other").check()
        press_deploy(page)
        expect(page.get_by_role("link", name="Try it in the playground")).to_be_visible(
            timeout=30_000
        )
        assert '"models":["other","double"]' in file.read_text().replace(" ", "").replace("\n", "")
