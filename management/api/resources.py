"""/resources: the connections that actions share."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taipan.ruleengine.records import ListedResource, ResourceRecord

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes, OnDemand
from ..operations.listing import Listing, PageQuery
from ..operations.refusal import wrong
from ..operations.resources import DeadLetterRecord
from .rules import Description, Id, Members, members

routes = Endpoints("Resources")

_DIGITS: Final = 17


class Liveness(msgspec.Struct):
    is_alive: bool


class NewResource(msgspec.Struct, kw_only=True):
    """With ``test`` nothing is created: the answer shows whether such a resource can be reached."""

    type: Annotated[str, Meta(max_length=256)]
    config: Members
    id: Id | UnsetType = UNSET
    description: Description = ""
    test: bool = False


class ResourceChanges(msgspec.Struct, kw_only=True):
    """Changes of a resource; fields that are not given and masked secrets remain unchanged."""

    config: Members | UnsetType = UNSET
    description: Description | UnsetType = UNSET


class Chosen(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The selected rows; without ``ids`` all rows, so unknown keys are refused."""

    ids: Annotated[list[int], Meta(max_length=100_000)] | UnsetType = UNSET


class Count(msgspec.Struct):
    count: int


@routes.get("/resources", "The resources", reply=OfNodes(list[ListedResource]))
async def list_resources(call: Call) -> list[ListedResource] | Extra:
    return of_nodes(*await call.operations.resources.records())


@routes.get("/resources/{id}", "One resource", reply=OfNodes(ResourceRecord))
async def show_resource(call: Call) -> ResourceRecord | Extra:
    return of_nodes(*await call.operations.resources.lookup(call.path["id"]))


@routes.post("/resources", "Create a resource, or test one", body=NewResource, reply=OnDemand(ResourceRecord))
async def create_resource(call: Call) -> ResourceRecord | None:
    """The resource is created even if the other system does not answer yet; the node keeps trying."""
    new: NewResource = call.body
    resources = call.operations.resources
    resource_id = None if new.id is UNSET else new.id
    if new.test:
        await resources.test(new.type, members(new.config), resource_id)
        return None
    return await resources.create(new.type, members(new.config), resource_id, new.description)


@routes.put("/resources/{id}", "Change a resource that no enabled rule uses", body=ResourceChanges)
async def update_resource(call: Call) -> None:
    changes: dict[str, Any] = msgspec.to_builtins(call.body)
    if "config" in changes:
        changes["config"] = members(changes["config"])
    await call.operations.resources.update(call.path["id"], **changes)


@routes.post("/resources/{id}", "Test now whether a resource can be reached")
async def start_resource(call: Call) -> None:
    await call.operations.resources.start(call.path["id"])


@routes.delete("/resources/{id}", "Delete a resource that no rule uses")
async def delete_resource(call: Call) -> None:
    await call.operations.resources.delete(call.path["id"])


@routes.get("/resources/{id}/dead_letters", "Dead letters of a resource", query=PageQuery, reply=list[DeadLetterRecord])
def list_dead_letters(call: Call) -> Listing[DeadLetterRecord]:
    """The dead letters, oldest first."""
    rows = call.query.rows(call.operations.settings.max_row_limit)
    return call.operations.resources.dead_letters(call.path["id"], call.query.page, rows)


@routes.post("/resources/{id}/dead_letters", "Send dead letters again", body=Chosen, reply=Count)
async def send_dead_letters(call: Call) -> Count:
    """Send the dead letters in ``ids``, or all, again; they join the queue, and count as new rows in the metrics."""
    return Count(await call.operations.resources.send_dead_letters(call.path["id"], _ids(call.body)))


@routes.delete("/resources/{id}/dead_letters", "Delete the dead letters of a resource", reply=Count)
async def clear_dead_letters(call: Call) -> Count:
    return Count(await call.operations.resources.remove_dead_letters(call.path["id"]))


@routes.delete("/resources/{id}/dead_letters/{number}", "Delete a dead letter")
async def delete_dead_letter(call: Call) -> None:
    number = call.path["number"]
    if not (number.isascii() and number.isdigit() and len(number) < _DIGITS):
        raise wrong("number", "expected the id of a row")
    await call.operations.resources.remove_dead_letters(call.path["id"], [int(number)])


def _ids(body: Chosen) -> list[int] | None:
    return None if body.ids is UNSET else body.ids


@routes.get("/resource_status/{id}", "The status of a resource", reply=OfNodes(Liveness))
async def show_resource_status(call: Call) -> Liveness | Extra:
    alive, missing = await call.operations.resources.alive(call.path["id"])
    return of_nodes(Liveness(alive), missing)
