"""/slow_subscriptions: the clients that took longest to acknowledge."""

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.slow_subscriptions import SlowRecord

routes = Endpoints("Slow subscriptions")


@routes.get("/slow_subscriptions", "The slowest subscriptions", reply=OfNodes(list[SlowRecord]))
async def get_history(call: Call) -> list[SlowRecord] | Extra:
    return of_nodes(*await call.operations.slow_subscriptions.listing())


@routes.delete("/slow_subscriptions", "Clear the list of slow subscriptions")
async def clear_history(call: Call) -> None:
    await call.operations.slow_subscriptions.clear()
