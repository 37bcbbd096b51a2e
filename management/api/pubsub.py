"""/mqtt: publish, subscribe and unsubscribe on behalf of clients."""

import msgspec
from msgspec import UNSET, UnsetType

from ..http.routes import Call, Endpoints, Lenient, OnDemand
from ..operations.pubsub import NamelessPublishRequest, PublishRequest, SubscribeRequest, UnsubscribeRequest

routes = Endpoints("Publish, subscribe, unsubscribe")


class MessageIds(msgspec.Struct):
    """The id of the message for one topic, or the ids for several topics."""

    msgid: str | UnsetType = UNSET
    msgids: list[str] | UnsetType = UNSET


class PublishedRecord(msgspec.Struct):
    """The result of one item of a batch; ``message``: why it was not published."""

    topic: str
    code: int
    message: str | UnsetType = UNSET
    msgids: list[str] | UnsetType = UNSET


class SubscribedRecord(msgspec.Struct):
    """The result of one item of a batch; ``message``: why it was not executed."""

    clientid: str
    topic: str
    code: int
    message: str | UnsetType = UNSET


@routes.post(
    "/mqtt/publish",
    "Publish messages as a client",
    body=Lenient(PublishRequest, NamelessPublishRequest),
    reply=OnDemand(MessageIds),
    scope="publish",
)
async def mqtt_publish(call: Call) -> dict[str, object] | None:
    request: PublishRequest = call.body
    ids = await call.operations.pubsub.publish(request)
    if request.ids is UNSET:
        return None
    return {"msgid": ids[-1]} if request.topics is UNSET else {"msgids": ids}


@routes.post(
    "/mqtt/publish_batch",
    "Publish many messages",
    body=Lenient(list[PublishRequest], list[NamelessPublishRequest]),
    reply=list[PublishedRecord],
    scope="publish",
)
async def mqtt_publish_batch(call: Call) -> list[dict[str, object]]:
    return await call.operations.pubsub.publish_batch(call.body)


@routes.post("/mqtt/subscribe", "Subscribe a client", body=SubscribeRequest)
async def mqtt_subscribe(call: Call) -> None:
    await call.operations.pubsub.subscribe(call.body)


@routes.post("/mqtt/subscribe_batch", "Subscribe clients", body=list[SubscribeRequest], reply=list[SubscribedRecord])
async def mqtt_subscribe_batch(call: Call) -> list[dict[str, object]]:
    return await call.operations.pubsub.subscribe_batch(call.body)


@routes.post("/mqtt/unsubscribe", "Unsubscribe a client", body=UnsubscribeRequest)
async def mqtt_unsubscribe(call: Call) -> None:
    await call.operations.pubsub.unsubscribe(call.body)


@routes.post(
    "/mqtt/unsubscribe_batch", "Unsubscribe clients", body=list[UnsubscribeRequest], reply=list[SubscribedRecord]
)
async def mqtt_unsubscribe_batch(call: Call) -> list[dict[str, object]]:
    return await call.operations.pubsub.unsubscribe_batch(call.body)
