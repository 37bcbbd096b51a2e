"""Prometheus: both forms, read by prometheus-client's parser."""

import re
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.test_metrics import LATER, SPECIFICATION
from tests.api.test_stats import SHOWN
from tests.support.api import ApiClient, ManagedNode, managed_node

pytestmark = pytest.mark.asyncio

Sample = tuple[tuple[str, str], ...]


async def scrape(node: ManagedNode, path: str = "/metrics", **query: Any) -> dict[str, dict[Sample, float]]:
    """Name -> labels -> value; no family may come twice."""
    asked = ApiClient(node.management.url, "" if path == "/metrics" else "/api/v4")
    try:
        reply = await asked.get(path, **query)
    finally:
        await asked.close()
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[Sample, float]] = {}
    names = []
    for family in text_string_to_metric_families(reply.text):
        names.append(family.name)
        assert family.type in ("counter", "gauge") and family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            name = sample.name
            if not name.startswith("taipan"):  # the parser adds it to every counter; EMQX's have none
                name = name.removesuffix("_total")
            assert labels not in found.setdefault(name, {})
            found[name][labels] = sample.value
    assert len(names) == len(set(names))
    return found


def name_of(metric: str) -> str:
    exceptions = {"packets.connect.received": "emqx_packets_connect"}
    return exceptions.get(metric, "emqx_" + metric.replace(".", "_"))


async def test_every_metric_and_stat() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t")
        found = await scrape(node)
        metrics = (await node.api.get("/metrics")).data[0]["metrics"]
        for metric in (*SPECIFICATION, *LATER):
            assert found[name_of(metric)] == {(): metrics[metric]}, metric
        assert found["taipan_nodes_hosted"] == {(): 0}
        for stat in set(SHOWN) - {"alarms", "nodes.hosted"}:
            for kind in ("count", "max"):
                assert () in found[f"emqx_{stat.replace('.', '_')}_{kind}"]
        assert found["emqx_subscriptions_count"] == {(): 1}


@pytest.mark.parametrize("path,query", [("/metrics", {}), ("/emqx_prometheus", {"type": "prometheus"})])
async def test_both_places_of_the_text(path: str, query: dict[str, str]) -> None:
    async with managed_node() as node:
        found = await scrape(node, path, **query)
        assert "emqx_bytes_received" in found and "taipan_info" in found


OWN = {
    "taipan_info": {"node": "taipan@127.0.0.1"},
    "taipan_loop_lag_seconds": {"of": "p99"},
    "taipan_disconnects_total": {"reason": "normal"},
    "taipan_hook_errors_total": {},
    "taipan_store_batches_total": {},
    "taipan_store_congested": {},
    "taipan_store_pending": {},
    "taipan_store_bytes": {},
    "taipan_store_trouble": {},
    "taipan_alarms": {},
    "taipan_memory_used": {},
    "taipan_memory_limit": {},
    "taipan_memory_queues": {},
    "taipan_listener_connections": {"listener": "mqtt:tcp:tcp-0"},
    "taipan_listener_max_connections": {"listener": "http:management"},
    "taipan_listener_accepted_total": {"listener": "mqtt:tcp:tcp-0"},
    "taipan_listener_throttled_total": {"listener": "mqtt:tcp:tcp-0"},
    "taipan_listener_refused_total": {"listener": "http:management", "reason": "max_connections"},
    "taipan_listener_shutdowns_total": {"listener": "mqtt:tcp:tcp-0", "reason": "normal"},
}


@pytest.mark.parametrize("name", OWN)
async def test_own_figure(name: str) -> None:
    async with managed_node(durability={"level": "disk"}) as node:
        await (await node.client("gone")).disconnect()
        await node.settled(0)
        await node.client("c1")
        samples = (await scrape(node))[name]
        wanted = OWN[name].items()
        values = [value for labels, value in samples.items() if wanted <= dict(labels).items()]
        assert len(values) == 1
        if name in ("taipan_listener_connections", "taipan_listener_shutdowns_total", "taipan_info"):
            assert values == [1]
        if name == "taipan_listener_accepted_total":
            assert values == [2]


async def test_our_own_names_are_as_prometheus_wants_them() -> None:
    """As ``promtool check metrics`` holds it, which is asked too where it is installed. EMQX's names are EMQX's."""
    async with managed_node(durability={"level": "disk"}) as node:
        asked = ApiClient(node.management.url, "")
        text = (await asked.get("/metrics")).text
        await asked.close()
    kinds = dict(re.findall(r"^# TYPE (taipan_\w+) (\w+)$", text, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (taipan_\w+) \S", text, re.MULTILINE))
    assert len(kinds) >= 10 and helped == kinds.keys()
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter")
        assert not name.endswith(("_count", "_sum", "_bucket", "_gauge", "_counter"))
        assert name.islower()
    promtool = shutil.which("promtool")
    if promtool is not None:
        said = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert [line for line in (said.stderr + said.stdout).splitlines() if line.startswith("taipan_")] == []
        assert "parsing error" not in said.stderr


MACHINE = [
    "emqx_vm_cpu_use",
    "emqx_vm_cpu_idle",
    "emqx_vm_run_queue",
    "emqx_vm_process_messages_in_queues",
    "emqx_vm_total_memory",
    "emqx_vm_used_memory",
    "emqx_cluster_nodes_running",
    "emqx_cluster_nodes_stopped",
]


@pytest.mark.parametrize("name", MACHINE)
async def test_machine_figure(name: str) -> None:
    async with managed_node() as node:
        (value,) = (await scrape(node))[name].values()
        json = (await node.api.get("/emqx_prometheus")).data["metrics"]
        assert name in json
        if name.endswith("memory"):
            assert value > 1_000_000
        elif name.startswith("emqx_vm_cpu"):
            assert 0 <= value <= 100
        else:
            assert value == (name == "emqx_cluster_nodes_running")


GROUPS = {
    "stats": "emqx_sessions_count",
    "metrics": "emqx_vm_used_memory",
    "packets": "emqx_packets_connect",
    "messages": "emqx_messages_received",
    "delivery": "emqx_delivery_dropped",
    "client": "emqx_client_connected",
    "session": "emqx_session_created",
}


@pytest.mark.parametrize("query", [{}, {"type": "json"}])
@pytest.mark.parametrize("group", GROUPS)
async def test_json_group(group: str, query: dict[str, str]) -> None:
    async with managed_node() as node:
        await node.client("c1")
        data = (await node.api.get("/emqx_prometheus", **query)).data
        assert set(data) == set(GROUPS)
        assert GROUPS[group] in data[group]
        assert data["session"]["emqx_session_created"] == 1
        assert data["packets"]["emqx_bytes_received"] > 0


async def test_an_unknown_type() -> None:
    async with managed_node() as node:
        reply = await node.api.get("/emqx_prometheus", type="xml")
        assert (reply.status, reply.code) == (400, 108)


@pytest.mark.parametrize("public", [False, True])
async def test_credentials(public: bool) -> None:
    async with managed_node({"public_metrics": public}) as node:
        for prefix, path in (("", "/metrics"), ("/api/v4", "/emqx_prometheus"), ("/api", "/emqx_prometheus")):
            anonymous = ApiClient(node.management.url, prefix, app=None)
            assert (await anonymous.get(path)).status == (200 if public else 401)
            await anonymous.close()
        anonymous = ApiClient(node.management.url, app=None)
        assert (await anonymous.get("/metrics")).status == 401  # the counters of EMQX's API
        await anonymous.close()
