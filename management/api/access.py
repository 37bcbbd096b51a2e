"""/access: why a client may publish, subscribe or log in."""

from ..http.routes import Call, Endpoints
from ..operations.access import AccessExplained, AccessQuery, LoginBody, LoginExplained

routes = Endpoints("Access")


@routes.get(
    "/access/explain", "Which rule decides whether a client may do this", query=AccessQuery, reply=AccessExplained
)
async def explain_access(call: Call) -> AccessExplained:
    return await call.operations.access.explain(call.query)


@routes.post("/access/try_login", "Test a login", body=LoginBody, reply=LoginExplained)
async def try_login(call: Call) -> LoginExplained:
    return await call.operations.access.try_login(call.body)
