"""The container's configuration, the compose files and the chart: what they give a node is what it takes."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from taipan.broker.version import product_version
from taipan.management.configuration.config import load
from tests.support.nats_server import nats_server_program

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
CONTAINER = PACKAGING / "container"
CHART = PACKAGING / "helm" / "taipan"
CONFIG = CONTAINER / "taipan.toml"
COMPOSE = ("compose.yaml", "compose-cluster.yaml")


def services(file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONTAINER / file).read_text("utf-8"))["services"]
    return found


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def templates() -> str:
    return "".join(file.read_text("utf-8") for file in sorted((CHART / "templates").iterdir()))


def ports_of(text: str) -> set[int]:
    return {int(bind.rpartition(":")[2]) for bind in re.findall(r'bind = "([^"]+)"', text)}


def test_the_image_exposes_where_its_configuration_listens() -> None:
    load(str(CONFIG), environ={})
    [exposed] = re.findall(r"(?m)^EXPOSE (.*)$", (CONTAINER / "Containerfile").read_text("utf-8"))
    assert {int(port) for port in exposed.split()} == ports_of(CONFIG.read_text("utf-8"))


def test_the_image_is_made_of_what_is_there_and_of_every_part() -> None:
    text = (CONTAINER / "Containerfile").read_text("utf-8")
    copied = [name for line in re.findall(r"(?m)^COPY (?!--)(.*) \S+$", text) for name in line.split()]
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name not in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"pyproject.toml", "setup.py", "build_compiled.py", project["readme"], *project["license-files"]} <= {
        *copied
    }
    parts = ("taipan", "config", *(link.name for link in (ROOT / "taipan").iterdir() if link.is_symlink()))
    assert {*parts} <= {*copied}


@pytest.mark.parametrize("file", COMPOSE)
def test_the_environment_of_each_service_is_taken(file: str) -> None:
    nodes = {name: each for name, each in services(file).items() if name.startswith("taipan")}
    assert nodes
    names = set()
    for each in nodes.values():
        settings = load(str(CONFIG), environ=each["environment"])
        names.add(settings.broker.node.name)
        assert settings.broker.zones["external"].allow_anonymous is True
        assert (settings.broker.cluster is not None) == ("NATS" in str(services(file)).upper())
        # Clients need no password, so nobody but this machine reaches a port.
        assert all(port.startswith("127.0.0.1:") for port in each["ports"])
        assert {int(port.rpartition(":")[2]) for port in each["ports"]} <= ports_of(CONFIG.read_text("utf-8"))
        assert each["read_only"] and each["cap_drop"] == ["ALL"]
    assert len(names) == len(nodes)


@pytest.mark.parametrize("file", COMPOSE)
def test_what_is_mounted_is_there(file: str) -> None:
    named = yaml.safe_load((CONTAINER / file).read_text("utf-8"))["volumes"]
    for name, each in services(file).items():
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            assert source in named if not source.startswith(".") else (CONTAINER / source).exists(), (name, volume)
        build = each.get("build")
        if build:
            assert (CONTAINER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).exists()


def test_prometheus_asks_each_node() -> None:
    jobs = yaml.safe_load((PACKAGING / "prometheus" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    asked = {target for job in jobs for group in job["static_configs"] for target in group["targets"]}
    nodes = [name for name in services("compose-cluster.yaml") if name.startswith("taipan")]
    assert asked == {f"{name}:8081" for name in nodes}
    settings = load(str(CONFIG), environ=services("compose-cluster.yaml")[nodes[0]]["environment"])
    assert settings.management.public_metrics


def test_nats_takes_the_largest_packet() -> None:
    [most] = re.findall(r"max_payload: (\d+)MB", (CONTAINER / "nats.conf").read_text("utf-8"))
    largest = load(str(CONFIG), environ={}).broker.zones["external"].max_packet_size
    assert int(most) * 1_000_000 >= largest + 4096


def test_nats_takes_its_configuration() -> None:
    command = [nats_server_program(), "-t", "-c", str(CONTAINER / "nats.conf")]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["appVersion"] == project["version"]
    assert product_version().startswith(project["version"])


def test_each_value_of_the_chart_is_used_and_there() -> None:
    text = templates()
    used = {match.split(".")[0] for match in re.findall(r"\.Values\.([\w.]+)", text)}
    assert used == set(values())
    for path in re.findall(r"\.Values\.([\w.]+)", text):
        found: Any = values()
        for step in path.split("."):
            assert step in found, path
            found = found[step]
    assert text.count("{{") == text.count("}}")
    assert len(re.findall(r"{{-? (?:if|with|range|define)\b", text)) == len(re.findall(r"{{-? end\b", text))


def test_what_the_chart_gives_a_node_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "taipan.toml"
    file.write_text(values()["config"], "utf-8")
    names = re.findall(r"- name: (TAIPAN__\w+)", templates())
    given = dict.fromkeys(names, "x") | {
        "TAIPAN__NODE__NAME": "taipan@taipan-0.taipan-nodes",
        "TAIPAN__CLUSTER__SERVERS": json.dumps(["nats://nats:4222"]),
    }
    settings = load(str(file), environ=given)
    assert settings.broker.cluster is not None
    assert ports_of(values()["config"]) == set(values()["service"]["ports"].values())
