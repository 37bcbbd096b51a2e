"""/slow_subscriptions: who took longest to acknowledge."""

from ..http.routes import Call, Routes
from ..operations.slow_subscriptions import SlowRecord

routes = Routes("Slow subscriptions")


@routes.get("/slow_subscriptions", "The slowest subscriptions", reply=list[SlowRecord])
def get_history(call: Call) -> list[SlowRecord]:
    return call.operations.slow_subscriptions.listing()


@routes.delete("/slow_subscriptions", "Forget the slow subscriptions")
def clear_history(call: Call) -> None:
    call.operations.slow_subscriptions.clear()
