"""/schemas: how SQL functions read and write binary payloads."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taipan.ruleengine.records import ParserType, SchemaRecord

from ..http.routes import Call, Endpoints
from .rules import Description

routes = Endpoints("Schemas")


class NewSchema(msgspec.Struct, kw_only=True):
    """``schema``: the text, for Protobuf of one .proto file."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    parser_type: ParserType
    schema: str
    descr: Description = ""


class SchemaChanges(msgspec.Struct, kw_only=True):
    """Changes of a schema; fields that are not given remain unchanged."""

    schema: str | UnsetType = UNSET
    descr: Description | UnsetType = UNSET


@routes.get("/schemas", "The schemas", reply=list[SchemaRecord])
def list_schemas(call: Call) -> list[SchemaRecord]:
    return call.operations.schemas.records()


@routes.get("/schemas/{name}", "One schema", reply=SchemaRecord)
def show_schema(call: Call) -> SchemaRecord:
    return call.operations.schemas.lookup(call.path["name"])


@routes.post("/schemas", "Create a schema", body=NewSchema, reply=SchemaRecord)
async def create_schema(call: Call) -> SchemaRecord:
    new: NewSchema = call.body
    return await call.operations.schemas.create(new.name, new.parser_type, new.schema, new.descr)


@routes.put("/schemas/{name}", "Change a schema", body=SchemaChanges, reply=SchemaRecord)
async def update_schema(call: Call) -> SchemaRecord:
    changes: dict[str, Any] = msgspec.to_builtins(call.body)
    return await call.operations.schemas.update(call.path["name"], **changes)


@routes.delete("/schemas/{name}", "Delete a schema")
async def delete_schema(call: Call) -> None:
    await call.operations.schemas.delete(call.path["name"])
