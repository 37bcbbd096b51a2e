"""Answers for which nodes are asked are as the OpenAPI document says: all nodes there, one silent, one stopped."""

import asyncio

import pytest
import requests
from schemathesis.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from taipan.management.api.index import all_routes
from taipan.management.http.routes import OfNodes
from taipan.management.operations.listing import PageQuery
from tests.api.test_openapi import SCHEMA
from tests.support.api import APP_ID, SECRET
from tests.support.fake_cluster import FakeNodes, fake_nodes

pytestmark = pytest.mark.asyncio

N2 = "n2@host"
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
VALUES = {"clientid": "c1", "username": "u", "topic": "t", "id": "r1", "name": "web_hook", "node": N2, "ep": "e"}
QUERIES = {
    "/explain": {"topic": "t"},
    "/subscribers": {"topic": "t"},
    "/shared_groups/members": {"topic": "t"},
    "/lookup_cmd/{ep}": {"path": "/3/0", "msgType": "read"},
    "/nodes/{node}/lookup_cmd/{ep}": {"path": "/3/0", "msgType": "read"},
}
ABSENT = ("/trace/", "/resource", "/delayed/")
"""Parts of paths for which the nodes have nothing of that name."""
WITHOUT_META = ("/nodes", "/brokers")


def the_paths() -> list[str]:
    """What asks nodes: by its reply, its pages or its path."""
    return [
        each.path
        for each in all_routes()
        if each.method == "GET"
        and (
            isinstance(each.reply, OfNodes)
            or (isinstance(each.query, type) and issubclass(each.query, PageQuery))
            or "node" in each.path
            or each.path in WITHOUT_META
        )
    ]


async def ask(nodes: FakeNodes, path: str) -> requests.Response:
    operation = SCHEMA["/api/v4" + path]["GET"]
    values = {name: value for name, value in VALUES.items() if f"{{{name}}}" in path}
    case = operation.Case(path_parameters=values, query=QUERIES.get(path, {}))

    def call() -> requests.Response:
        with requests.Session() as session:
            session.auth = (APP_ID, SECRET)
            url = nodes[0].management.url
            case.call_and_validate(base_url=url, session=session, checks=CHECKS, timeout=10)
            whole = path.format(**values)
            return session.get(f"{url}/api/v4{whole}", params=QUERIES.get(path), timeout=10)

    return await asyncio.to_thread(call)


@pytest.mark.slow
async def test_answers_are_as_documented() -> None:
    silent_answers = 0
    async with fake_nodes(2, slow_subscriptions={"enabled": True}) as nodes:
        for node in nodes.nodes:
            await node.engine.rules.create('SELECT * FROM "t"', [{"name": "do_nothing", "params": {}}], "r1", "", True)
            await node.engine.resources.create("web_hook", {"url": "http://127.0.0.1:1/"}, "r2", "")
            await node.leave_session(f"c{nodes.nodes.index(node) + 1}", "t", username="u")
            for path, body in (
                ("/trace", {"name": "r1", "type": "topic", "topic": "t"}),
                ("/topic-metrics", {"topic": "t"}),
                ("/data/export", None),
            ):
                assert (await node.api.post(path, body)).code == 0
        for path in the_paths():
            reply = await ask(nodes, path)
            assert reply.status_code == 200 or any(each in path for each in ABSENT), (path, reply.text)
        nodes.hub.silent.add(N2)
        for path in the_paths():
            reply = await ask(nodes, path)
            silent_answers += "missing_nodes" in reply.json().get("meta", {})
            if "{node}" in path:
                assert (reply.status_code, reply.json()["code"]) == (500, 101), path
        nodes.hub.stop(N2)
        for path in the_paths():
            assert "missing_nodes" not in (await ask(nodes, path)).json().get("meta", {})
    assert silent_answers > 15
