"""The OpenAPI 3.1 document, created from the routes and types that are used to read requests."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..configuration.settings import ManagementSettings
from ..operations.listing import PageQuery
from .routes import PREFIXES, Endpoint, Lenient, OfNodes, OnDemand, OrEmpty, Raw, Redirect, Schema, UnparsedBody

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_VARIABLE: Final = re.compile(r"\{([^}]+)\}")

_ABOUT: Final = (
    "Every path under `/api/v4` also exists under `/api`. Every answer is a JSON object with an integer `code`: 0 "
    "for success, anything else with a `message` that gives the reason. Path parameters are percent-decoded"
    " once, so a topic's "
    "`/` is `%2F`. If a key is in both the query string and the body, the query string applies."
)

_MISSING: Final = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Nodes of the cluster that did not answer and are left out",
}

_FAILURES: Final = {
    "400": "The request is wrong: a missing key, a wrong value, invalid JSON, an invalid topic, or an object"
    " that already "
    "exists",
    "401": "No credentials (104) or wrong ones (103)",
    "404": "The object does not exist",
    "500": "The node could not complete the request",
    "503": "A limit of open streams or watches is reached, or the node is stopping",
}


async def document(
    routes: Iterable[Endpoint], root_routes: Iterable[Endpoint], settings: ManagementSettings, version: str
) -> Schema:
    """``root_routes``: routes without a prefix. ``settings`` determine which endpoints are public and the status of
    failures."""
    prefix = "/" + "/".join(PREFIXES[0])
    placed = [(prefix + endpoint.path.rstrip("/"), endpoint) for endpoint in routes]
    placed += [(endpoint.path, endpoint) for endpoint in root_routes]
    schemas = _Schemas([endpoint for _, endpoint in placed], settings)
    work = CooperativeSlice()
    await work.next()
    paths: dict[str, Schema] = {}
    names: dict[str, int] = {}
    for path, endpoint in placed:
        await work.checkpoint()
        # One function may answer several paths, but an operation's id must be unique.
        names[endpoint.name] = names.get(endpoint.name, 0) + 1
        name = endpoint.name if names[endpoint.name] == 1 else f"{endpoint.name}_{names[endpoint.name]}"
        operation = _operation(endpoint, name, schemas, settings)
        if _is_public(path, prefix, settings):
            operation["security"] = []
            del operation["responses"]["401"]
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Taipan management", "version": version, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"basic": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(endpoint.tag for _, endpoint in placed)],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "AppID and AppSecret"},
            },
            "responses": {
                status: {"description": text, "content": {_JSON: {"schema": {"$ref": _REF.format(name="Failure")}}}}
                for status, text in _FAILURES.items()
            },
        },
    }


def _is_public(path: str, prefix: str, settings: ManagementSettings) -> bool:
    if path in ("/metrics", f"{prefix}/emqx_prometheus"):
        return settings.public_metrics
    return path == "/status" or (path == f"{prefix}/openapi.json" and settings.public_openapi)


class _Schemas:
    """The schemas of all types that endpoints use."""

    def __init__(self, routes: list[Endpoint], settings: ManagementSettings) -> None:
        self._error_status = settings.error_status
        types: list[object] = []
        for endpoint in routes:
            types += [each for each in (self._inner(endpoint.body), self._inner(endpoint.reply)) if each is not None]
        found, components = msgspec.json.schema_components(types, ref_template=_REF)
        self._of = dict(zip(map(repr, types), found, strict=True))
        self.components: Schema = {
            **components,
            "Failure": {
                "type": "object",
                "properties": {
                    "code": {"type": "integer", "minimum": 101},
                    "message": {"type": "string"},
                    "line": {"type": "integer", "minimum": 1, "description": "the line of the error in SQL"},
                    "column": {"type": "integer", "minimum": 1},
                },
                "required": ["code", "message"],
            },
            "PageMeta": {
                "type": "object",
                "description": "`count` is -1 if conditions were given",
                "properties": {
                    "page": {"type": "integer"},
                    "limit": {"type": "integer"},
                    "count": {"type": "integer", "minimum": -1},
                    "hasnext": {"type": "boolean"},
                    "missing_nodes": _MISSING,
                },
                "required": ["page", "limit", "count", "hasnext"],
            },
            "NodesMeta": {"type": "object", "properties": {"missing_nodes": _MISSING}, "required": ["missing_nodes"]},
        }

    def of(self, kind: object) -> Schema:
        if isinstance(kind, OrEmpty):
            return {"anyOf": [self.of(kind.kind), {"type": "object", "maxProperties": 0}]}
        return self._of[repr(self._inner(kind))]

    def _inner(self, kind: object) -> object:
        """Return the inner type of a body or a reply."""
        if isinstance(kind, Lenient):
            return kind.of(self._error_status)
        if isinstance(kind, OrEmpty | OnDemand | OfNodes | UnparsedBody):
            return kind.kind
        return None if isinstance(kind, Raw | Redirect) else kind


def _operation(endpoint: Endpoint, name: str, schemas: _Schemas, settings: ManagementSettings) -> Schema:
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for each in _VARIABLE.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        parameters += _query_parameters(endpoint.query)
    operation: Schema = {"operationId": name, "summary": endpoint.descr, "tags": [endpoint.tag]}
    if endpoint.handler.__doc__:
        operation["description"] = " ".join(endpoint.handler.__doc__.split())
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas.of(endpoint.body)}}}
    operation["responses"] = _responses(endpoint, schemas, settings)
    return operation


def _query_parameters(kind: type[msgspec.Struct]) -> list[Schema]:
    (_,), components = msgspec.json.schema_components([kind], ref_template=_REF)
    schema = components[kind.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: Schema) -> Schema:
    """Remove null from a schema: a query string cannot contain null, so a nullable parameter is an optional one."""
    given = {key: value for key, value in schema.items() if key != "default" or value is not None}
    choices = [each for each in given.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        del given["anyOf"]
        given.update(choices[0])
    if None in given.get("enum", []):
        given["enum"] = [each for each in given["enum"] if each is not None]
    return given


def _responses(endpoint: Endpoint, schemas: _Schemas, settings: ManagementSettings) -> Schema:
    if isinstance(endpoint.reply, Redirect):
        location = {"Location": {"schema": {"type": "string", "format": "uri"}}}
        redirected = {"description": f"Leads {endpoint.reply.where}", "headers": location}
        return {"303": redirected} | {each: _failure(each) for each in ("400", "401", "404")}
    responses: Schema = {"200": _success(endpoint, schemas)}
    wanted = ["400", "401", "404", "500", "503"]
    if settings.error_status == "emqx":
        # Failures may also have status 200, except for wrong credentials.
        content = responses["200"]["content"].setdefault(_JSON, {"schema": {}})
        failure = {"$ref": _REF.format(name="Failure")}
        content["schema"] = {"anyOf": [content["schema"], failure]} if content["schema"] else failure
        wanted = ["401"]
    for status in wanted:
        responses[status] = _failure(status)
    if isinstance(endpoint.reply, Raw):
        for status in endpoint.reply.failures:
            responses[status] = {
                "description": "The node does not serve clients",
                "content": responses["200"]["content"],
            }
    return responses


def _failure(status: str) -> Schema:
    return {"$ref": f"#/components/responses/{status}"}


def _success(endpoint: Endpoint, schemas: _Schemas) -> Schema:
    if isinstance(endpoint.reply, Raw):
        content = {kind: {"schema": schema} for kind, schema in endpoint.reply.content.items()}
        return {"description": endpoint.descr, "content": content}
    properties: Schema = {"code": {"const": 0}}
    required = ["code"]
    if endpoint.reply is not None:
        properties["data"] = schemas.of(endpoint.reply)
        if not isinstance(endpoint.reply, OnDemand):
            required.append("data")
    if endpoint.query is not None and issubclass(endpoint.query, PageQuery):
        properties["meta"] = {"$ref": _REF.format(name="PageMeta")}
        if endpoint.query.pages_on_demand:
            properties["meta"] = {"anyOf": [properties["meta"], {"$ref": _REF.format(name="NodesMeta")}]}
        else:
            required.append("meta")
    if isinstance(endpoint.reply, OfNodes):
        properties["meta"] = {"$ref": _REF.format(name="NodesMeta")}
    schema = {"type": "object", "properties": properties, "required": required}
    return {"description": endpoint.descr, "content": {_JSON: {"schema": schema}}}
