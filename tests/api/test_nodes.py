"""/brokers and /nodes, and the manners of every endpoint."""

import re

import pytest

from taipan.management.operations.nodes import size_text
from tests.support.api import ApiClient, managed_node

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("prefix", ["/api", "/api/v4"])
async def test_both_forms_of_brokers_and_nodes(prefix: str) -> None:
    async with managed_node() as node:
        api = ApiClient(node.management.url, prefix)
        (broker,) = (await api.get("/brokers")).data
        assert broker["node"] == node.name and broker["node_status"] == "Running"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", broker["datetime"])
        assert re.fullmatch(r"\d+ seconds", broker["uptime"])
        assert (await api.get(f"/brokers/{node.name}")).data["version"] == broker["version"]
        (status,) = (await api.get("/nodes/")).data
        assert re.fullmatch(r"\d+\.\d\d[KMG]", status["memory_total"])
        one = (await api.get("/nodes/" + node.name.replace("@", "%40"))).data
        assert isinstance(one["memory_total"], int) and one["memory_total"] > one["memory_used"] > 0
        assert one["max_fds"] > 0 and one["connections"] == 0 and re.fullmatch(r"\d+\.\d\d", one["load1"])
        missing = await api.get("/nodes/nobody@nowhere")
        assert (missing.status, missing.code) == (404, 102)
        await api.close()


async def test_sizes_in_words() -> None:
    assert size_text(1024) == 1024 and size_text(1536) == "1.50K" and size_text(3 << 30) == "3.00G"


async def test_who_has_no_credentials_is_told_so() -> None:
    async with managed_node() as node:
        nobody = ApiClient(node.management.url, app=None)
        reply = await nobody.get("/brokers")
        assert (reply.status, reply.code) == (401, 104)
        assert reply.headers["WWW-Authenticate"].startswith("Basic ")
        wrong = ApiClient(node.management.url, app=("tester", "nonsense"))
        reply = await wrong.get("/no/such/path")
        assert (reply.status, reply.code) == (401, 103)
        # Beside the prefixes there is nothing to be let in to.
        nobody.prefix = ""
        assert (await nobody.get("/else")).status == 404
        for client in (nobody, wrong):
            await client.close()


async def test_old_clients_get_200_and_the_code() -> None:
    async with managed_node({"error_status": "emqx"}) as node:
        reply = await node.api.get("/nothing")
        assert (reply.status, reply.code) == (200, 102) and "/nothing" in reply.json["message"]


async def test_the_index_lists_the_endpoints() -> None:
    async with managed_node() as node:
        listed = (await node.api.get("/")).data
        assert {
            "name": "get_broker",
            "method": "GET",
            "path": "/brokers/:node",
            "descr": "Version and uptime of a node",
        } in listed
