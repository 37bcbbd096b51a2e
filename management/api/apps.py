"""/apps: the applications that may use the management server."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..http.routes import Call, Empty, Endpoints, OrEmpty
from ..operations.apps import AppRecord

routes = Endpoints("Applications")

Expired = (
    Annotated[int, Meta(ge=0, le=253_402_300_799, extra={"unit": "unix seconds"})] | Literal["undefined", ""] | None
)
Text = Annotated[str, Meta(max_length=1024)]


class NewApp(msgspec.Struct):
    """``secret``: made by the node unless it is given; an empty one, as of a form, is none."""

    app_id: str
    name: Text
    secret: Text | None = None
    desc: Text = ""
    status: bool = True
    expired: Expired = None


class AppUpdate(msgspec.Struct):
    """Changes of an application; fields that are not given remain unchanged."""

    name: Text | UnsetType = UNSET
    desc: Text | UnsetType = UNSET
    status: bool | UnsetType = UNSET
    expired: Expired | UnsetType = UNSET


class Secret(msgspec.Struct):
    secret: str


@routes.get("/apps", "Applications", reply=list[AppRecord])
def list_apps(call: Call) -> list[AppRecord]:
    return call.operations.apps.listing()


@routes.get("/apps/{app_id}", "An application", reply=OrEmpty(AppRecord))
def lookup_app(call: Call) -> AppRecord | Empty:
    return call.operations.apps.lookup(call.path["app_id"]) or {}


@routes.post("/apps", "Create an application; its secret is shown only now", body=NewApp, reply=Secret)
async def add_app(call: Call) -> Secret:
    given: NewApp = call.body
    secret = await call.operations.apps.add(
        given.app_id, given.name, given.secret or None, given.desc, given.status, _end(given.expired)
    )
    return Secret(secret)


@routes.put("/apps/{app_id}", "Change an application", body=AppUpdate)
async def update_app(call: Call) -> None:
    given = {key: value for key, value in msgspec.structs.asdict(call.body).items() if value is not UNSET}
    if "expired" in given:
        given["expired"] = _end(given["expired"])
    await call.operations.apps.update(call.path["app_id"], **given)


@routes.delete("/apps/{app_id}", "Delete an application")
async def delete_app(call: Call) -> None:
    await call.operations.apps.delete(call.path["app_id"])


def _end(expired: int | str | None) -> int | None:
    return expired if isinstance(expired, int) else None
