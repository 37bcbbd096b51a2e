"""The OpenAPI document: it says what is there, and what it says holds whatever is sent."""

import asyncio
import contextlib
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import Case, Response
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation import GenerationMode

from taipan.management.api import monitoring
from taipan.management.api.index import all_routes
from taipan.management.configuration.settings import ManagementSettings
from taipan.management.http.openapi import document
from taipan.management.http.routes import Endpoint, Raw, Redirect
from tests.support.api import APP_ID, SECRET, managed_node

pytestmark = pytest.mark.asyncio

EXAMPLES = 4
"""Requests of each kind, sound and unsound, for an operation."""

DOCUMENT = asyncio.run(document(all_routes(), monitoring.root_routes.all, ManagementSettings(), "0"))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
QUIET = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def the_operations() -> list[tuple[str, str, Endpoint]]:
    """Method, whole path and endpoint, the root's among them."""
    under = [(endpoint.method, "/api/v4" + endpoint.path.rstrip("/"), endpoint) for endpoint in all_routes()]
    return under + [(endpoint.method, endpoint.path, endpoint) for endpoint in monitoring.root_routes.all]


def has_an_integer_code(response: Response, case: Case[Any]) -> None:
    """Every answer is the envelope, failures with words."""
    body = response.json()
    assert type(body["code"]) is int and (body["code"] == 0) == (response.status_code == 200), body
    assert body["code"] == 0 or body["message"], body


def ask_whatever(url: str, method: str, path: str, endpoint: Endpoint) -> None:
    operation = SCHEMA[path][method]
    raw = isinstance(endpoint.reply, Raw)
    asked: list[Case[Any]] = []
    with requests.Session() as session:
        session.auth = (APP_ID, SECRET)

        def ask(case: Case[Any]) -> None:
            asked.append(case)
            response = case.call_and_validate(base_url=url, session=session, checks=CHECKS, timeout=10)
            if not raw or (response.status_code >= 400 and path not in ("/status", "/metrics")):
                has_an_integer_code(response, case)

        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            cases = operation.as_strategy(generation_mode=mode)
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):
                # Without parameters there is nothing to get wrong.
                QUIET(hypothesis.given(case=cases)(ask))()
        assert asked


def operations_with_an_end() -> list[tuple[str, str, Endpoint]]:
    """All but event streams, which answer until the caller goes: tests/api/test_live.py."""
    return [
        each
        for each in the_operations()
        if not isinstance(each[2].reply, Raw) or "text/event-stream" not in each[2].reply.content
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, path, endpoint",
    operations_with_an_end(),
    ids=[f"{method} {path}" for method, path, _ in operations_with_an_end()],
)
async def test_whatever_is_sent_the_answer_is_one_documented(method: str, path: str, endpoint: Endpoint) -> None:
    async with managed_node() as node:
        await node.client("c1", username="u1")
        await asyncio.to_thread(ask_whatever, node.management.url, method, path, endpoint)
        # It has survived, whatever it was asked.
        assert (await node.api.get("/brokers")).status == 200


async def test_the_document_tells_of_every_route() -> None:
    """Under unique names, with every variable, and with nothing about what is not there."""
    async with managed_node() as node:
        told = (await node.api.get("/openapi.json")).json
    assert told["openapi"].startswith("3.1")
    operations = {(method.upper(), path): each for path, all in told["paths"].items() for method, each in all.items()}
    assert set(operations) == {(method, path) for method, path, _ in the_operations()}
    names = [each["operationId"] for each in operations.values()]
    assert len(set(names)) == len(names)
    for method, path, endpoint in the_operations():
        given = {each["name"] for each in operations[method, path].get("parameters", []) if each["in"] == "path"}
        assert given == {each[1:-1] for each in endpoint.segments if each.startswith("{")}
        assert ("requestBody" in operations[method, path]) == (endpoint.body is not None)
        # Whoever answers says with what, or where to.
        responses = operations[method, path]["responses"]
        redirects = isinstance(endpoint.reply, Redirect)
        assert responses["303"]["headers"]["Location"] if redirects else responses["200"]["content"]


async def test_failures_of_old_clients_are_documented_as_200() -> None:
    async with managed_node({"error_status": "emqx", "public_openapi": True}) as node:
        told = (await node.api.get("/openapi.json")).json
    lookup = told["paths"]["/api/v4/clients/{clientid}"]["get"]["responses"]
    assert set(lookup) == {"200", "401"}
    assert {"$ref": "#/components/schemas/Failure"} in lookup["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert told["paths"]["/api/v4/openapi.json"]["get"]["security"] == []


@pytest.mark.parametrize(
    "path, required, some",
    [("/data/import", [], {"version", "filename", "file", "apps"}), ("/data/file", ["file"], {"filename"})],
)
async def test_a_body_that_its_handler_reads_itself_is_told(path: str, required: list[str], some: set[str]) -> None:
    content = DOCUMENT["paths"]["/api/v4" + path]["post"]["requestBody"]["content"]["application/json"]
    schema = DOCUMENT["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    assert schema.get("required", []) == required and some <= set(schema["properties"])


@pytest.mark.parametrize(
    "schema, key, values",
    [
        ("AddedRecord", "action", {"pub", "sub", "pubsub"}),
        ("AddedRecord", "access", {"allow", "deny"}),
        ("AclCacheEntry", "access", {"publish", "subscribe"}),
        ("TraceRecord", "type", {"clientid", "topic", "ip_address"}),
    ],
)
async def test_what_an_answer_may_say_is_told(schema: str, key: str, values: set[str]) -> None:
    assert set(DOCUMENT["components"]["schemas"][schema]["properties"][key]["enum"]) == values


async def test_a_trace_has_one_condition() -> None:
    schema = DOCUMENT["components"]["schemas"]["TraceRecord"]
    assert {"clientid", "topic", "ip_address"} < schema["properties"].keys()
    assert {"clientid", "topic", "ip_address"}.isdisjoint(schema["required"])
