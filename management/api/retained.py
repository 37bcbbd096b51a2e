"""/retained: the retained messages of the node."""

import msgspec

from ..http.routes import Call, Endpoints
from ..operations.listing import Listing
from ..operations.retained import RetainedMessage, RetainedQuery, RetainedRecord

routes = Endpoints("Retained messages")


class DeleteQuery(msgspec.Struct):
    """``dry_run``: only count the messages."""

    dry_run: bool = False


class DeletedRecord(msgspec.Struct):
    """The number of deleted messages."""

    count: int


@routes.get("/retained", "Retained messages", query=RetainedQuery, reply=list[RetainedRecord])
def list_retained(call: Call) -> Listing[RetainedRecord]:
    return call.operations.retained.search(call.query, call.operations.settings.max_row_limit)


@routes.get("/retained/{topic}", "The retained message of a topic", reply=RetainedMessage)
def get_retained(call: Call) -> RetainedMessage:
    return call.operations.retained.get(call.path["topic"])


@routes.delete(
    "/retained/{filter}",
    "Delete the retained messages of all topics that match",
    query=DeleteQuery,
    reply=DeletedRecord,
)
async def delete_retained(call: Call) -> DeletedRecord:
    retained = call.operations.retained
    return DeletedRecord(await (retained.count if call.query.dry_run else retained.delete)(call.path["filter"]))
