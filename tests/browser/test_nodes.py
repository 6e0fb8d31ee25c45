"""The console of a router, and the part of the deploy form that is for a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
from playwright.sync_api import expect

from naiad.cluster.spec import parse_spec
from tests.browser.conftest import OpenPage
from tests.browser.test_accessibility import AXE, check
from tests.browser.test_keys import create_key, sign_in
from tests.server.harness import naiad
from tests.server.router_fleet import Fleet, fleet, infer_body, write_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("nodes") / "repository")


@pytest.fixture(scope="module")
def pair(repository: Path) -> Iterator[Fleet]:
    with fleet(repository, "east", "west") as both:
        yield both


def test_lists_nodes_replicas_and_models_and_drains_a_replica(
    pair: Fleet, open_page: OpenPage
) -> None:
    assert pair.router.post("/v2/models/plus_one/infer", infer_body(1))[0] == 200
    page = open_page(pair.router)
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_text(["Nodes"])
    node = page.get_by_role("region", name="Node 127.0.0.1", exact=True)
    east = node.locator("tbody tr").filter(has_text="east")
    expect(east).to_contain_text("Ready")
    expect(east).to_contain_text("plus_one")
    expect(page.get_by_role("region", name="Summary")).to_contain_text("2 of 2")
    models = page.get_by_role("region", name="Models", exact=True)
    expect(models.locator("tbody tr").filter(has_text="plus_one")).to_contain_text(
        "2 of 2 replicas: east, west"
    )
    page.get_by_role("button", name="Drain east").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(east).to_contain_text("Draining")
    assert pair.replicas()["east"]["state"] == "draining"
    page.get_by_role("button", name="Resume east").click()
    expect(east).to_contain_text("Ready")
    pair.kill("west")
    west = node.locator("tbody tr").filter(has_text="west")
    expect(west).to_contain_text("Down", timeout=20_000)
    expect(page.get_by_role("region", name="Summary")).to_contain_text("1 down")


@pytest.mark.skipif(not AXE.is_file(), reason=f"there is no {AXE}: make test-browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_no_serious_problem_on_the_nodes_page(
    pair: Fleet, open_page: OpenPage, scheme: str, width: int
) -> None:
    page = open_page(
        pair.router, color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    page.add_script_tag(content=AXE.read_text())
    expect(page.get_by_role("region", name="Node 127.0.0.1", exact=True)).to_be_visible()
    check(page, "nodes")


def test_a_router_with_keys_asks_for_one(
    repository: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    key = create_key(tmp_path / "keys.json", "watcher", "statistics")
    one = Fleet(repository)
    try:
        one.route(f"--api-key-file={tmp_path / 'keys.json'}")
        page = open_page(one.router)
        sign_in(page, key)
        expect(page.get_by_text("No replicas yet")).to_be_visible()
        assert page.evaluate("document.cookie") == ""
    finally:
        one.stop()


def test_the_form_writes_an_entry_that_the_cluster_reads(
    open_page: OpenPage, tmp_path: Path
) -> None:
    repository, cluster = tmp_path / "repository", tmp_path / "cluster"
    repository.mkdir()
    cluster.mkdir()
    with naiad([str(repository)], [], {"NAIAD_CLUSTER_DIR": str(cluster)}) as server:
        page = open_page(server, "deploy")
        page.get_by_role("tab", name="Catalogue").click()
        page.get_by_role("button", name="Use double", exact=True).click()
        expect(page.get_by_role("region", name="Name and version")).to_be_visible()
        expect(page.get_by_role("region", name="Placement")).to_have_count(0)
        (cluster / "head").write_text("10.0.0.1:6380")
        page.reload()
        page.get_by_role("tab", name="Catalogue").click()
        page.get_by_role("button", name="Use double", exact=True).click()
        section = page.get_by_role("region", name="Placement")
        section.get_by_label("Replicas", exact=True).fill("3")
        section.get_by_label("CPUs").fill("2")
        section.get_by_label("Memory").fill("2GiB")
        section.get_by_label("GPUs", exact=True).fill("0.5")
        section.get_by_label("Order").select_option("pack")
        section.get_by_label("Most replicas on one node").fill("1")
        section.get_by_label("Labels that a node must have").fill("zone=a|b, disk=nvme")
        section.get_by_label("Only these nodes").fill("10.0.0.2, second")
        entry = section.get_by_role("region", name="Entry of the cluster file")
        (deployment,) = parse_spec(entry.inner_text().encode(), ".toml", "cluster.toml").deployment
        assert (deployment.name, deployment.repository) == ("double", str(repository))
        assert (deployment.models, deployment.replicas) == (("double",), 3)
        assert (deployment.resources.cpus, deployment.resources.gpus) == (2, 0.5)
        assert deployment.resources.resources.memory_bytes == 2 << 30
        placement = deployment.placement
        assert (placement.strategy, placement.max_replicas_per_node) == ("pack", 1)
        assert placement.require == {"zone": "a|b", "disk": "nvme"}
        assert placement.nodes == ("10.0.0.2", "second")
        section.get_by_label("As many replicas as the load needs").check()
        section.get_by_label("Fewest replicas").fill("0")
        (scaled,) = parse_spec(entry.inner_text().encode(), ".toml", "cluster.toml").deployment
        assert scaled.autoscaling is not None
        assert (scaled.autoscaling.min_replicas, scaled.autoscaling.max_replicas) == (0, 4)
