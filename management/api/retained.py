"""/retained: the retained messages of the node."""

from typing import Any

import msgspec

from ..http.reading import PageQuery
from ..http.routes import Call, Routes

routes = Routes("Retained messages")


class RetainedQuery(PageQuery, kw_only=True):
    """``topic``: exact. ``_match_topic``: a Topic Filter. Both count."""

    topic: str | None = None
    match_topic: str | None = msgspec.field(default=None, name="_match_topic")


class RetainedRecord(msgspec.Struct):
    """One retained message. ``expires_at``: null for never; ``from_clientid``: null for the node itself."""

    node: str
    topic: str
    qos: int
    payload_size: int
    publish_at: str
    expires_at: str | None
    from_clientid: str | None
    from_username: str | None


class RetainedMessage(RetainedRecord):
    """With what it says. ``encoding`` is that of ``payload``: plain, or base64 where it is not UTF-8."""

    payload: str
    encoding: str
    properties: dict[str, Any]


class DeletedRecord(msgspec.Struct):
    """How many there were."""

    count: int


@routes.get("/retained", "Retained messages", query=RetainedQuery, reply=list[RetainedRecord])
def list_retained(call: Call) -> Any:
    query: RetainedQuery = call.query
    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.retained.listing(query.page, limit, query.topic, query.match_topic)


@routes.get("/retained/{topic}", "The retained message of a topic", reply=RetainedMessage)
def get_retained(call: Call) -> Any:
    return call.operations.retained.get(call.path["topic"])


@routes.delete("/retained/{filter}", "Delete the retained messages of all topics that match", reply=DeletedRecord)
async def delete_retained(call: Call) -> Any:
    return {"count": await call.operations.retained.delete(call.path["filter"])}
