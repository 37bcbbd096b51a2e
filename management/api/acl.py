"""/acl: access rules as EMQX 4.4 has them, the newest first, ``pubsub`` as two."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taipan.broker.access.stored_rules import ALL, CLIENT_ID, USERNAME

from ..http.reading import PageQuery
from ..http.routes import Call, Routes
from ..operations.acl import OK, NewRule, Subject, half_record
from ..operations.listing import Row
from ..operations.refusal import wrong
from .broker_acl import Action

routes = Routes("ACL rules of EMQX 4.4")

Name = Annotated[str, Meta(min_length=1, max_length=65_535)]
Access = Literal["allow", "deny"]


class AllQuery(PageQuery, kw_only=True):
    topic: str | None = None
    action: Literal["pub", "sub"] | None = None
    access: Access | None = None
    like_topic: str | None = msgspec.field(default=None, name="_like_topic")


class ClientIdQuery(AllQuery, kw_only=True):
    clientid: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_clientid")


class UsernameQuery(AllQuery, kw_only=True):
    username: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_username")


class NewRecord(msgspec.Struct):
    """Neither ``clientid`` nor ``username``: about everybody."""

    topic: str
    action: Action
    access: Access
    clientid: Name | None = None
    username: Name | None = None


class ClientIdRecord(msgspec.Struct):
    clientid: str
    topic: str
    action: str
    access: str


class UsernameRecord(msgspec.Struct):
    username: str
    topic: str
    action: str
    access: str


class AllRecord(msgspec.Struct):
    all: str
    topic: str
    action: str
    access: str


class AddedRecord(msgspec.Struct):
    """What was given, with the subject under its kind."""

    topic: str
    action: Action
    access: Access
    result: str
    clientid: str | UnsetType = UNSET
    username: str | UnsetType = UNSET
    all: str | UnsetType = UNSET


@routes.post(
    "/acl",
    "Add access rules before the others",
    body=list[NewRecord] | NewRecord,
    reply=list[AddedRecord] | AddedRecord,
)
async def add_acl(call: Call) -> Any:
    given = call.body if isinstance(call.body, list) else [call.body]
    rules = [NewRule(_subject(each), each.topic, each.action, each.access == "allow") for each in given]
    await call.operations.acl.add_first(rules)
    done = [{**half_record(rule.subject, rule.topic, rule.action, rule.allow), "result": OK} for rule in rules]
    return done if isinstance(call.body, list) else done[0]


@routes.get("/acl/clientid", "Rules about client identifiers", query=ClientIdQuery, reply=list[ClientIdRecord])
def list_acl_clientid(call: Call) -> Any:
    return _listing(call, CLIENT_ID, {"clientid": call.query.clientid}, {"clientid": call.query.like})


@routes.get("/acl/username", "Rules about user names", query=UsernameQuery, reply=list[UsernameRecord])
def list_acl_username(call: Call) -> Any:
    return _listing(call, USERNAME, {"username": call.query.username}, {"username": call.query.like})


@routes.get("/acl/$all", "Rules about everybody", query=AllQuery, reply=list[AllRecord])
def list_acl_all(call: Call) -> Any:
    return _listing(call, ALL, {}, {})


@routes.get("/acl/clientid/{clientid}", "Rules about a client identifier", reply=list[ClientIdRecord])
def lookup_acl_clientid(call: Call) -> Any:
    return call.operations.acl.halves_of((CLIENT_ID, call.path["clientid"]))


@routes.get("/acl/username/{username}", "Rules about a user name", reply=list[UsernameRecord])
def lookup_acl_username(call: Call) -> Any:
    return call.operations.acl.halves_of((USERNAME, call.path["username"]))


@routes.delete("/acl/clientid/{clientid}/topic/{topic}", "Remove a client identifier's rules for a topic")
async def delete_acl_clientid(call: Call) -> Any:
    await call.operations.acl.delete_of((CLIENT_ID, call.path["clientid"]), call.path["topic"])


@routes.delete("/acl/username/{username}/topic/{topic}", "Remove a user name's rules for a topic")
async def delete_acl_username(call: Call) -> Any:
    await call.operations.acl.delete_of((USERNAME, call.path["username"]), call.path["topic"])


@routes.delete("/acl/$all/topic/{topic}", "Remove everybody's rules for a topic")
async def delete_acl_all(call: Call) -> Any:
    await call.operations.acl.delete_of((ALL, ""), call.path["topic"])


def _subject(given: NewRecord) -> Subject:
    if given.clientid is not None and given.username is not None:
        raise wrong("clientid", "a rule is about a clientid or a username, not both")
    if given.clientid is not None:
        return CLIENT_ID, given.clientid
    return (USERNAME, given.username) if given.username is not None else (ALL, "")


def _listing(call: Call, kind: str, exact: dict[str, str | None], like: dict[str, str | None]) -> Any:
    query = call.query
    exact = {**exact, "topic": query.topic, "action": query.action, "access": query.access}
    like = {**like, "topic": query.like_topic}
    same = {key: value for key, value in exact.items() if value is not None}
    parts = {key: value for key, value in like.items() if value is not None}

    def matches(record: Row) -> bool:
        return all(record[key] == value for key, value in same.items()) and all(
            part in record[key] for key, part in parts.items()
        )

    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.acl.halves_listing(kind, query.page, limit, matches if same or parts else None)
