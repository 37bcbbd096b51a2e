"""/resource_types: what resources there can be."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes
from .actions import ParamDefinition, Words
from .resources import ListedResource

routes = Routes("Resource types")


class ResourceTypeRecord(msgspec.Struct, kw_only=True):
    """Specification, Resource type."""

    name: str
    title: Words
    description: Words
    params: dict[str, ParamDefinition]
    provider: str


@routes.get("/resource_types", "The types of resources", reply=list[ResourceTypeRecord])
def list_resource_types(call: Call) -> Any:
    return call.operations.resources.types()


@routes.get("/resource_types/{name}", "One type of resources", reply=ResourceTypeRecord)
def show_resource_type(call: Call) -> Any:
    return call.operations.resources.type(call.path["name"])


@routes.get("/resource_types/{name}/resources", "The resources of a type", reply=list[ListedResource])
def list_resources_of_type(call: Call) -> Any:
    return call.operations.resources.records(call.path["name"])
