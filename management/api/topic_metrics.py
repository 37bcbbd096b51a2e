"""/topic-metrics: message counts of selected topics."""

import msgspec

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.topic_metrics import TopicMetricsRecord

routes = Endpoints("Topic metrics")


class TopicBody(msgspec.Struct):
    """A Topic Name: no wildcards."""

    topic: str


@routes.get("/topic-metrics", "Metrics of all counted topics", reply=OfNodes(list[TopicMetricsRecord]))
async def list_all_topic_metrics(call: Call) -> list[TopicMetricsRecord] | Extra:
    return of_nodes(*await call.operations.topic_metrics.records())


@routes.get("/topic-metrics/{topic}", "Metrics of a topic", reply=OfNodes(dict[str, int | float]))
async def list_topic_metrics(call: Call) -> dict[str, int | float] | Extra:
    return of_nodes(*await call.operations.topic_metrics.get(call.path["topic"]))


@routes.post("/topic-metrics", "Start counting the messages of a topic", body=TopicBody)
async def register_topic_metrics(call: Call) -> None:
    await call.operations.topic_metrics.add(call.body.topic)


@routes.delete("/topic-metrics", "Stop counting the messages of all topics")
async def unregister_all_topic_metrics(call: Call) -> None:
    await call.operations.topic_metrics.clear()


@routes.delete("/topic-metrics/{topic}", "Stop counting the messages of a topic")
async def unregister_topic_metrics(call: Call) -> None:
    await call.operations.topic_metrics.remove(call.path["topic"])
