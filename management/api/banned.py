"""/banned: bans of clients."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..http.routes import Call, Endpoints
from ..operations.banned import BanRecord
from ..operations.listing import Listing, PageQuery

routes = Endpoints("Banned")

Time = Annotated[int, Meta(ge=0, le=253_402_300_799, extra={"unit": "Unix seconds"})]
Text = Annotated[str, Meta(max_length=65_535)]


class NewBan(msgspec.Struct, kw_only=True):
    who: Annotated[str, Meta(min_length=1, max_length=65_535)]
    kind: Literal["clientid", "username", "peerhost"] = msgspec.field(name="as")
    by: Text | UnsetType = UNSET
    reason: Text | UnsetType = UNSET
    at: Time | UnsetType = UNSET
    until: Time | UnsetType = UNSET
    kick: bool | UnsetType = UNSET


@routes.get("/banned", "Bans", query=PageQuery, reply=list[BanRecord])
def list_banned(call: Call) -> Listing[BanRecord]:
    return call.operations.banned.listing(call.query.page, call.query.rows(call.operations.settings.max_row_limit))


@routes.post("/banned", "Ban a client", body=NewBan, reply=NewBan)
async def add_banned(call: Call) -> dict[str, object]:
    """The answer repeats the given values."""
    given: dict[str, Any] = msgspec.to_builtins(call.body)
    details = {key: value for key, value in given.items() if key not in ("as", "who")}
    await call.operations.banned.add(given["as"], given["who"], **details)
    return given


@routes.delete("/banned/{as}/{who}", "Lift a ban")
async def delete_banned(call: Call) -> None:
    await call.operations.banned.delete(call.path["as"], call.path["who"])
