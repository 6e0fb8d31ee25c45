"""Where the routers of a cluster are, what they get, and what they report together."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from naiad.cluster.controller import Controller
from naiad.cluster.router_load import RouterLoad, add_loads
from naiad.cluster.spec import parse_spec
from naiad.errors import NaiadError
from naiad.files.private_folder import write_file
from naiad.keys.key import KeyDocument, encode_document
from tests.unit.cluster.fake_machines import FakeMachines, node

TOML = "[router]\ncount = {count}\n{more}\n[[deployment]]\nname = 'd'\nrepository = '/m'\n"


class Cluster:
    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.machines = FakeMachines(*(node(name) for name in names))
        self.asked: list[tuple[str, int]] = []
        self.now_s = 0.0
        self.controller = Controller(
            self.machines, folder / "state", "id-head", self._load, lambda: self.now_s
        )

    def _load(self, address: str, port: int) -> RouterLoad:
        self.asked.append((address, port))
        return RouterLoad(is_known=True)

    def apply(self, count: int, more: str = "") -> None:
        text = TOML.format(count=count, more=more)
        spec = parse_spec(text.encode(), ".toml", "cluster.toml")
        self.controller.apply(spec.in_folder(self.folder))

    def tick(self, count: int = 3) -> None:
        for _ in range(count):
            self.now_s += 1
            self.machines.make_ready()
            self.controller.tick()

    @property
    def routers(self) -> dict[str, str]:
        return {
            name: node_id.removeprefix("id-")
            for name, (_, node_id, _) in self.machines.servers.items()
            if name.startswith("router")
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, "head", "a", "b")


def test_the_first_router_is_on_the_head_and_others_on_other_nodes(cluster: Cluster) -> None:
    cluster.apply(3)
    cluster.tick()
    assert sorted(cluster.routers.values()) == ["a", "b", "head"]
    assert cluster.routers["router"] == "head"
    assert cluster.controller.is_settled
    ports = {name: cluster.machines.servers[name][0].ports["metrics"] for name in cluster.routers}
    assert sorted(ports.values()) == [8002, 8003, 8004]
    assert len({cluster.machines.configs[name] for name in cluster.routers}) == 1
    assert set(cluster.asked[-3:]) == {("127.0.0.1", port) for port in ports.values()}


def test_more_routers_than_nodes_share_nodes(cluster: Cluster) -> None:
    cluster.apply(5)
    cluster.tick()
    assert sorted(cluster.routers.values()) == ["a", "a", "b", "b", "head"]


def test_a_router_moves_when_its_node_is_away_or_drains(cluster: Cluster) -> None:
    cluster.apply(2)
    cluster.tick()
    [second] = [name for name in cluster.routers if name != "router"]
    assert cluster.routers[second] == "a"
    cluster.controller.drain("a")
    cluster.tick()
    assert second in cluster.machines.stopped
    assert sorted(cluster.routers.values()) == ["b", "head"]
    cluster.machines.lose("b")
    cluster.tick()
    assert sorted(cluster.routers.values()) == ["head", "head"]
    cluster.controller.drain("head")
    cluster.tick()
    assert cluster.routers["router"] == "head", "clients know the head's address"


def test_a_controller_that_was_killed_keeps_its_routers(cluster: Cluster) -> None:
    cluster.apply(2)
    cluster.tick()
    before = cluster.routers
    cluster.controller = Controller(
        cluster.machines, cluster.folder / "state", "id-head", cluster._load, lambda: 0.0
    )
    cluster.tick()
    assert cluster.routers == before
    assert cluster.machines.stopped == []


def test_all_routers_get_the_key_file_and_its_changes(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(NaiadError, match=r"keys\.json' does not exist"):
        cluster.apply(2, "api_key_file = 'keys.json'")
    first = encode_document(KeyDocument())
    write_file(file, first)
    cluster.apply(2, "api_key_file = 'keys.json'")
    cluster.tick()
    names = list(cluster.routers)
    for name in names:
        spec = cluster.machines.servers[name][0]
        assert spec.files["keys.json"] == first, "it is there before the first start"
        assert "replica" in msgspec.json.decode(spec.files["config.json"])
        assert len(spec.files["replica-key"]) > 20
        assert "--api-key-file={folder}/keys.json" in spec.arguments
        assert "--num-routers=2" in spec.arguments
    file.write_text("{")
    cluster.tick()
    assert {cluster.machines.files[name, "keys.json"] for name in names} == {first}
    second = msgspec.json.encode(KeyDocument())
    write_file(file, second)
    cluster.tick()
    for name in names:
        written = cluster.machines.files[name, "keys.json"]
        assert msgspec.json.decode(written) == msgspec.json.decode(second)


def test_the_load_of_all_routers_is_added() -> None:
    first = RouterLoad({"d-1": 2.0}, {"m": 1.0}, True, {"d-1": 1.0})
    second = RouterLoad({"d-1": 1.0, "d-2": 4.0}, {}, True, {"d-1": 1.0})
    both = add_loads([first, second])
    assert both.in_flight == {"d-1": 3.0, "d-2": 4.0}
    assert both.waiting == {"m": 1.0}
    assert both.ejected == {"d-1": 1.0}
    assert both.is_known
    assert not add_loads([first, RouterLoad()]).is_known
    assert not add_loads([]).is_known


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("count = 0", "router: count is 0, expected 1 to 64"),
        ("count = 2\nmetrics_port = 8000", "http_port is 8000, but 2 routers use the ports 8000"),
        ("count = 2\nmetrics_port = 65535", "metrics_port is 65535, too high for 2 routers"),
    ],
)
def test_a_count_that_cannot_be_is_refused(fields: str, message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        parse_spec(f"[router]\n{fields}\n".encode(), ".toml", "f")
    assert message in caught.value.message


def test_a_deployment_has_another_name_than_the_routers() -> None:
    text = b"[[deployment]]\nname = 'router'\nrepository = '/m'\n"
    with pytest.raises(NaiadError, match="is that of the cluster's routers"):
        parse_spec(text, ".toml", "f")
