"""/nodes/{node}/log: the latest lines of a node's log."""

from ..http.routes import Call, Endpoints
from ..operations.log_view import LogLines, LogLinesQuery

routes = Endpoints("Log")


@routes.get("/nodes/{node}/log", "The latest lines of a node's log", query=LogLinesQuery, reply=LogLines)
async def read_log(call: Call) -> LogLines:
    return await call.on_node(call.operations.log_view.lines_here, call.query)
