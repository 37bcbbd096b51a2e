"""The OpenAPI 3.1 document, made of the same routes and types that read the requests."""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice

from ..operations.listing import PageQuery
from ..settings import ManagementSettings
from .routes import PREFIXES, Lenient, OnDemand, OrEmpty, Raw, Route, UnparsedBody

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_VARIABLE: Final = re.compile(r"\{([^}]+)\}")

_ABOUT: Final = (
    "Every path under `/api/v4` stands under `/api` as well. Every answer is a JSON object with an integer `code`: 0 "
    "for success, anything else with a `message` that says why. Path parameters are percent-decoded once, so a topic's "
    "`/` is `%2F`. Of the body's keys, those that are in the query string win."
)

_FAILURES: Final = {
    "400": "The request is wrong: a missing key, a wrong value, no JSON, an invalid topic, or something that is there "
    "already",
    "401": "No credentials (104) or wrong ones (103)",
    "404": "No such thing",
    "500": "The node could not do it",
}


async def document(
    routes: Iterable[Route], root_routes: Iterable[Route], settings: ManagementSettings, version: str
) -> dict[str, Any]:
    """``root_routes`` stand beside the prefixes. ``settings`` tell what is public and which status failures have."""
    prefix = "/" + "/".join(PREFIXES[0])
    placed = [(prefix + route.path.rstrip("/"), route) for route in routes]
    placed += [(route.path, route) for route in root_routes]
    schemas = _Schemas([route for _, route in placed], settings)
    work = CooperativeSlice()
    await work.next()
    paths: dict[str, dict[str, Any]] = {}
    names: dict[str, int] = {}
    for path, route in placed:
        await work.checkpoint()
        # One function may answer several paths; an operation's id is unique all the same.
        names[route.name] = names.get(route.name, 0) + 1
        name = route.name if names[route.name] == 1 else f"{route.name}_{names[route.name]}"
        operation = _operation(route, name, schemas, settings)
        if _is_public(path, prefix, settings):
            operation["security"] = []
            del operation["responses"]["401"]
        paths.setdefault(path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Taipan management", "version": version, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"basic": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for _, route in placed)],
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
    """The schema of every type that a route names."""

    def __init__(self, routes: list[Route], settings: ManagementSettings) -> None:
        self._error_status = settings.error_status
        types: list[Any] = []
        for route in routes:
            types += [each for each in (self._inner(route.body), self._inner(route.reply)) if each is not None]
        found, components = msgspec.json.schema_components(types, ref_template=_REF)
        self._of = dict(zip(map(repr, types), found, strict=True))
        self.components: dict[str, Any] = {
            **components,
            "Failure": {
                "type": "object",
                "properties": {
                    "code": {"type": "integer", "minimum": 101},
                    "message": {"type": "string"},
                },
                "required": ["code", "message"],
            },
            "PageMeta": {
                "type": "object",
                "description": "`count` is -1 where conditions were given",
                "properties": {
                    "page": {"type": "integer"},
                    "limit": {"type": "integer"},
                    "count": {"type": "integer", "minimum": -1},
                    "hasnext": {"type": "boolean"},
                },
                "required": ["page", "limit", "count", "hasnext"],
            },
        }

    def of(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, OrEmpty):
            return {"anyOf": [self.of(kind.kind), {"type": "object", "maxProperties": 0}]}
        return self._of[repr(self._inner(kind))]

    def _inner(self, kind: Any) -> Any:
        """The type that a body or a reply is about."""
        if isinstance(kind, Lenient):
            return kind.of(self._error_status)
        if isinstance(kind, OrEmpty | OnDemand | UnparsedBody):
            return kind.kind
        return None if isinstance(kind, Raw) else kind


def _operation(route: Route, name: str, schemas: _Schemas, settings: ManagementSettings) -> dict[str, Any]:
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for each in _VARIABLE.findall(route.path)
    ]
    if route.query is not None:
        parameters += _query_parameters(route.query)
    operation: dict[str, Any] = {"operationId": name, "summary": route.descr, "tags": [route.tag]}
    if route.handler.__doc__:
        operation["description"] = " ".join(route.handler.__doc__.split())
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas.of(route.body)}}}
    operation["responses"] = _responses(route, schemas, settings)
    return operation


def _query_parameters(kind: type[Any]) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([kind], ref_template=_REF)
    schema = components[kind.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: what may be null is what may be left out."""
    given = {key: value for key, value in schema.items() if key != "default" or value is not None}
    choices = [each for each in given.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        del given["anyOf"]
        given.update(choices[0])
    if None in given.get("enum", []):
        given["enum"] = [each for each in given["enum"] if each is not None]
    return given


def _responses(route: Route, schemas: _Schemas, settings: ManagementSettings) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": _success(route, schemas)}
    wanted = ["400", "401", "404", "500"]
    if settings.error_status == "emqx":
        # Failures come with 200 as well, except for wrong credentials.
        content = responses["200"]["content"].setdefault(_JSON, {"schema": {}})
        failure = {"$ref": _REF.format(name="Failure")}
        content["schema"] = {"anyOf": [content["schema"], failure]} if content["schema"] else failure
        wanted = ["401"]
    for status in wanted:
        responses[status] = {"$ref": f"#/components/responses/{status}"}
    if isinstance(route.reply, Raw):
        for status in route.reply.failures:
            responses[status] = {"description": "It does not serve", "content": responses["200"]["content"]}
    return responses


def _success(route: Route, schemas: _Schemas) -> dict[str, Any]:
    if isinstance(route.reply, Raw):
        content = {kind: {"schema": schema} for kind, schema in route.reply.content.items()}
        return {"description": route.descr, "content": content}
    properties: dict[str, Any] = {"code": {"const": 0}}
    required = ["code"]
    if route.reply is not None:
        properties["data"] = schemas.of(route.reply)
        if not isinstance(route.reply, OnDemand):
            required.append("data")
    if route.query is not None and issubclass(route.query, PageQuery):
        properties["meta"] = {"$ref": _REF.format(name="PageMeta")}
        if not route.query.pages_on_demand:
            required.append("meta")
    schema = {"type": "object", "properties": properties, "required": required}
    return {"description": route.descr, "content": {_JSON: {"schema": schema}}}
