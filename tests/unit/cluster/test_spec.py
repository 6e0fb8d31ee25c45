from __future__ import annotations

from pathlib import Path

import pytest

from naiad.cluster.resources import Resources, readable_bytes
from naiad.cluster.spec import ClusterSpec, parse_spec, read_spec
from naiad.errors import NaiadError

TOML = b"""
[router]
http_port = 9000

[[deployment]]
name = "digits"
repository = "/models"
models = ["digits"]
replicas = 2
resources = { cpus = 2, memory = "4GiB" }
placement = { strategy = "pack", require = { zone = "a|b" }, max_replicas_per_node = 1 }
"""
PREFIX = "router_policy = 'prefix'\ntokenizer = '/t'\n"


def toml(text: str) -> ClusterSpec:
    return parse_spec(text.encode(), ".toml", "cluster.toml")


def deployment(fields: str) -> ClusterSpec:
    return toml(f"[[deployment]]\nname = 'd'\nrepository = '/models'\n{fields}")


def test_a_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(TOML)
    spec = read_spec(path)
    assert spec.router.http_port == 9000
    [digits] = spec.deployment
    assert digits.resources.resources == Resources(cpus=2, gpus=0, memory_bytes=4 * 2**30)
    assert digits.placement.require == {"zone": "a|b"}


def test_yaml_and_json_say_the_same() -> None:
    pytest.importorskip("yaml")
    yaml = b"deployment:\n  - {name: a, repository: /models, replicas: 2}\n"
    json = b'{"deployment": [{"name": "a", "repository": "/models", "replicas": 2}]}'
    assert parse_spec(yaml, ".yaml", "f") == parse_spec(json, ".json", "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replcas = 2", "unknown field `replcas` - at `$.deployment[0]`"),
        ("replicas = -1", "replicas must not be negative"),
        ("replicas = 1\nautoscaling = {}", "exclude each other"),
        ("resources = { gpus = 1.5 }", "expected a whole number, or a share between 0 and 1"),
        ("resources = { memory = 'much' }", "memory is 'much', expected a size such as 4GiB"),
        (
            "placement = { require = { zone = 'a' }, avoid = { zone = 'a' } }",
            "placement contradicts itself: it requires and avoids zone=a",
        ),
        ("placement = { policy = 'mine' }", "policy is 'mine', expected module:Class"),
        ("placement = { strategy = 'random' }", "Invalid enum value 'random'"),
        ("placement = { away_from = ['x'] }", "names 'x', which is no deployment"),
        ("placement = { away_from = ['d'] }", "placement names itself"),
        ("arguments = ['--http-port=1']", "the cluster sets --http-port itself"),
        ("start_timeout = 'soon'", "start_timeout: 'soon' is not a duration"),
        ("autoscaling = { min_replicas = 3, max_replicas = 2 }", "min_replicas <= max_replicas"),
        ("autoscaling = { min_replicas = 0, max_replicas = 2 }", "`models` must name its models"),
        ("tokenizer = '/t'\nmodels = ['m']", "only router_policy 'prefix' uses; its policy is"),
        (PREFIX + "models = ['m', 'n']", "`models` must name exactly one model"),
        (PREFIX, "`models` must name exactly one model"),
        (
            "router_policy = 'prefix'\ntokenizer = 'llama'\nmodels = ['m']",
            "tokenizer is 'llama', expected an absolute path",
        ),
        (
            PREFIX + "models = ['m']\n"
            "arguments = ['--backend-config', 'llm,kv_events_endpoint=tcp://*:1']",
            "remove the argument 'llm,kv_events_endpoint=tcp://*:1', or the tokenizer",
        ),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        deployment(text)
    assert message in caught.value.message
    assert caught.value.message.startswith("cluster.toml: ")


def test_two_deployments_have_two_names() -> None:
    row = "[[deployment]]\nname='a'\nrepository='/m'\n"
    with pytest.raises(NaiadError, match="two deployments have the name 'a'"):
        toml(row + row)


def test_a_name_fits_hosts_and_labels() -> None:
    with pytest.raises(NaiadError, match="lowercase letters, digits or '-'"):
        toml("[[deployment]]\nname='My Model'\nrepository='/m'\n")


def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="cannot read"):
        read_spec(tmp_path / "none.toml")
    (tmp_path / "a.ini").write_text("")
    with pytest.raises(NaiadError, match=r"suffix must be \.toml, \.yaml or \.json"):
        read_spec(tmp_path / "a.ini")


def test_only_what_needs_a_restart_changes_the_revision() -> None:
    [first] = deployment("replicas = 1").deployment
    [more] = deployment("replicas = 5\nplacement = { strategy = 'pack' }").deployment
    [other] = deployment("replicas = 1\narguments = ['--log-verbose=1']").deployment
    assert first.revision == more.revision != other.revision


def test_a_tokenizer_starts_replicas_again_and_another_path_does_not() -> None:
    [without] = deployment("router_policy = 'prefix'\nmodels = ['m']").deployment
    [first] = deployment(PREFIX + "models = ['m']").deployment
    [moved] = deployment(PREFIX.replace("/t", "/u") + "models = ['m']").deployment
    assert without.revision != first.revision == moved.revision


def test_the_policy_of_the_routers_counts_for_a_tokenizer() -> None:
    row = "[[deployment]]\nname='d'\nrepository='/m'\nmodels=['m']\ntokenizer='/t'\n"
    assert toml("[router]\npolicy = 'prefix'\n" + row).deployment[0].tokenizer == "/t"


def test_deployments_of_one_model_have_one_tokenizer() -> None:
    row = "[[deployment]]\nname='{}'\nrepository='/m'\nmodels=['m']\nrouter_policy='prefix'\n"
    first = row.format("a") + "tokenizer='/t'\n"
    with pytest.raises(NaiadError, match="'a' and 'b' serve the model 'm': both need the same"):
        toml(first + row.format("b"))
    toml(first + row.format("b") + "tokenizer='/t'\n")


def test_sizes_are_readable() -> None:
    assert readable_bytes(3 * 2**29) == "1.5 GiB"
