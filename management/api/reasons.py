"""/reasons: why a client, message or delivery was refused, dropped or lost, and which settings help."""

from ..http.routes import Call, Endpoints
from ..operations.reasons import ReasonRecord, ReasonsQuery, explained_reasons

routes = Endpoints("Explain")


@routes.get("/reasons", "What each reason of a refusal or drop means", query=ReasonsQuery, reply=list[ReasonRecord])
def list_reasons(call: Call) -> list[ReasonRecord]:
    return explained_reasons(call.query)
