"""/resources: the connections that actions share."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..http.routes import Call, OnDemand, Routes
from .rules import Description, Id

routes = Routes("Resources")


class ListedResource(msgspec.Struct, kw_only=True):
    """Specification, Resource. ``status``: whether it is alive on all nodes. ``fault`` (beyond the specification): why
    its configuration cannot be used any more. Passwords are masked."""

    id: str
    type: str
    config: dict[str, Any]
    description: str
    status: bool
    fault: str | UnsetType = UNSET


class ResourceStatus(msgspec.Struct, kw_only=True):
    """On one node. Further figures depend on the type: ``reason`` it is not alive, ``buffer``, what waits there."""

    node: str
    is_alive: bool


class ResourceRecord(msgspec.Struct, kw_only=True):
    """Specification, Resource; ``status`` where one was asked for. Passwords are masked."""

    id: str
    type: str
    config: dict[str, Any]
    description: str
    status: list[ResourceStatus] | UnsetType = UNSET
    fault: str | UnsetType = UNSET


class Liveness(msgspec.Struct):
    is_alive: bool


class NewResource(msgspec.Struct, kw_only=True):
    """With ``test`` nothing is created: the answer tells whether such a resource can be reached."""

    type: Annotated[str, Meta(max_length=256)]
    config: dict[str, Any]
    id: Id | UnsetType = UNSET
    description: Description = ""
    test: bool = False


class ResourceChanges(msgspec.Struct, kw_only=True):
    """What is given changes; a password that comes masked stays as it is."""

    config: dict[str, Any] | UnsetType = UNSET
    description: Description | UnsetType = UNSET


@routes.get("/resources", "The resources", reply=list[ListedResource])
def list_resources(call: Call) -> Any:
    return call.operations.resources.records()


@routes.get("/resources/{id}", "One resource", reply=ResourceRecord)
def show_resource(call: Call) -> Any:
    return call.operations.resources.lookup(call.path["id"])


@routes.post("/resources", "Create a resource, or test one", body=NewResource, reply=OnDemand(ResourceRecord))
async def create_resource(call: Call) -> Any:
    """It is created although nobody may answer yet; the node goes on trying."""
    new: NewResource = call.body
    resources = call.operations.resources
    if new.test:
        await resources.test(new.type, new.config)
        return None
    return await resources.create(new.type, new.config, None if new.id is UNSET else new.id, new.description)


@routes.put("/resources/{id}", "Change a resource that no enabled rule uses", body=ResourceChanges)
async def update_resource(call: Call) -> None:
    changes: dict[str, Any] = msgspec.to_builtins(call.body)
    await call.operations.resources.update(call.path["id"], **changes)


@routes.post("/resources/{id}", "Try at once to reach a resource")
async def start_resource(call: Call) -> None:
    await call.operations.resources.start(call.path["id"])


@routes.delete("/resources/{id}", "Delete a resource that no rule uses")
async def delete_resource(call: Call) -> None:
    await call.operations.resources.delete(call.path["id"])


@routes.get("/resource_status/{id}", "Whether a resource is alive", reply=Liveness)
def show_resource_status(call: Call) -> Any:
    return {"is_alive": call.operations.resources.alive(call.path["id"])}
