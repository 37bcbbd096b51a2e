"""/lwm2m_channels and /lookup_cmd: LwM2M devices and their last answers, as in EMQX 4.4."""

from ..http.routes import Call, Endpoints
from ..operations.lwm2m import CommandAnswer, CommandQuery, DeviceRow, DevicesQuery
from ..operations.node_listing import Page

routes = Endpoints("LwM2M devices")


@routes.get("/lwm2m_channels", "Registered LwM2M devices", query=DevicesQuery, reply=list[DeviceRow])
@routes.get(
    "/nodes/{node}/lwm2m_channels", "Registered LwM2M devices of a node", query=DevicesQuery, reply=list[DeviceRow]
)
async def list_devices(call: Call) -> Page[DeviceRow]:
    return await call.operations.lwm2m.search(call.query, call.operations.settings.max_row_limit, call.path.get("node"))


@routes.get(
    "/lookup_cmd/{ep}",
    "The last answer of a device to a command",
    query=CommandQuery,
    reply=CommandAnswer | list[CommandAnswer],
)
@routes.get(
    "/nodes/{node}/lookup_cmd/{ep}",
    "The last answer of a device of a node to a command",
    query=CommandQuery,
    reply=CommandAnswer | list[CommandAnswer],
)
async def lookup_command(call: Call) -> CommandAnswer | list[CommandAnswer]:
    """An empty list, as in EMQX, if there was no such command."""
    lwm2m, endpoint = call.operations.lwm2m, call.path["ep"]
    if "node" in call.path:
        found = await call.on_node(lwm2m.answer_here, endpoint, call.query)
    else:
        found = await lwm2m.answer(endpoint, call.query)
    return [] if found is None else found
