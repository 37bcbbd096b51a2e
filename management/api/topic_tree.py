"""/topic_tree and /retained_tree: topics, level by level."""

from ..http.routes import Call, Endpoints
from ..operations.listing import Listing
from ..operations.topic_tree import RetainedLevel, TopicLevel, TreeQuery

routes = Endpoints("Topic tree")


@routes.get("/topic_tree", "Levels of topics and filters below a topic", query=TreeQuery, reply=list[TopicLevel])
async def list_topic_tree(call: Call) -> Listing[TopicLevel]:
    return await call.operations.topic_tree.levels(call.query, call.operations.settings.max_row_limit)


@routes.get("/retained_tree", "Levels of retained messages below a topic", query=TreeQuery, reply=list[RetainedLevel])
async def list_retained_tree(call: Call) -> Listing[RetainedLevel]:
    return await call.operations.topic_tree.retained(call.query, call.operations.settings.max_row_limit)
