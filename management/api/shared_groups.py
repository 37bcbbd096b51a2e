"""/shared_groups: the shared subscriptions, their members, and the number of messages that each received."""

from ..http.routes import Call, Endpoints
from ..operations.node_listing import Page
from ..operations.shared_groups import (
    SharedGroupRecord,
    SharedGroupsQuery,
    SharedMemberRecord,
    SharedMembersQuery,
)

routes = Endpoints("Subscriptions")


@routes.get(
    "/shared_groups", "Shared subscriptions, page by page", query=SharedGroupsQuery, reply=list[SharedGroupRecord]
)
async def list_shared_groups(call: Call) -> Page[SharedGroupRecord]:
    return await call.operations.shared_groups.search(call.query, call.operations.settings.max_row_limit)


@routes.get(
    "/shared_groups/members",
    "Members of a shared subscription, and how many messages each received",
    query=SharedMembersQuery,
    reply=list[SharedMemberRecord],
)
async def list_shared_members(call: Call) -> Page[SharedMemberRecord]:
    return await call.operations.shared_groups.members.search(call.query, call.operations.settings.max_row_limit)
