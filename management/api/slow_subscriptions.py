"""/slow_subscriptions: who took longest to acknowledge."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes

routes = Routes("Slow subscriptions")


class SlowRecord(msgspec.Struct):
    """Milliseconds."""

    clientid: str
    node: str
    topic: str
    timespan: int
    last_update_time: int


@routes.get("/slow_subscriptions", "The slowest subscriptions", reply=list[SlowRecord])
def get_history(call: Call) -> Any:
    return call.operations.slow_subscriptions.listing()


@routes.delete("/slow_subscriptions", "Forget the slow subscriptions")
def clear_history(call: Call) -> None:
    call.operations.slow_subscriptions.clear()
