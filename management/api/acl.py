"""/acl: access rules in the form of EMQX 4.4, newest first; a ``pubsub`` rule is two records."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taipan.broker.access.stored.rules import ALL, ANONYMOUS, CLIENT_ID, USERNAME

from ..http.routes import Call, Endpoints
from ..operations.acl import (
    Access,
    Action,
    AddedRecord,
    AllRecord,
    AnonymousRecord,
    ClientIdRecord,
    Half,
    HalfRecord,
    NewAclRule,
    Subject,
    UsernameRecord,
    added_record,
)
from ..operations.listing import Listing, PageQuery
from ..operations.refusal import wrong

routes = Endpoints("ACL rules of EMQX 4.4")

MAX_NAME: Final = 65_535
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class AllQuery(PageQuery, kw_only=True):
    topic: str | None = None
    action: Half | None = None
    access: Access | None = None
    like_topic: str | None = msgspec.field(default=None, name="_like_topic")


class ClientIdRulesQuery(AllQuery, kw_only=True):
    clientid: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_clientid")


class UsernameRulesQuery(AllQuery, kw_only=True):
    username: str | None = None
    like: str | None = msgspec.field(default=None, name="_like_username")


class NewRecord(msgspec.Struct):
    """Without ``clientid``, ``username`` and ``anonymous``, the rule applies to all clients."""

    topic: str
    action: Action
    access: Access
    clientid: Name | None = None
    username: Name | None = None
    anonymous: bool = False
    listener: str = ""


@routes.post(
    "/acl",
    "Add access rules before the others",
    body=list[NewRecord] | NewRecord,
    reply=list[AddedRecord] | AddedRecord,
)
async def add_acl(call: Call) -> list[AddedRecord] | AddedRecord:
    given = call.body if isinstance(call.body, list) else [call.body]
    rules = [
        NewAclRule(_subject(each), each.topic, each.action, each.access == "allow", each.listener) for each in given
    ]
    await call.operations.acl.add_first(rules)
    done = [added_record(rule) for rule in rules]
    return done if isinstance(call.body, list) else done[0]


@routes.get("/acl/clientid", "Access rules of client IDs", query=ClientIdRulesQuery, reply=list[ClientIdRecord])
def list_acl_clientid(call: Call) -> Listing[HalfRecord]:
    return _listing(call, CLIENT_ID, call.query.clientid, call.query.like)


@routes.get("/acl/username", "Access rules of usernames", query=UsernameRulesQuery, reply=list[UsernameRecord])
def list_acl_username(call: Call) -> Listing[HalfRecord]:
    return _listing(call, USERNAME, call.query.username, call.query.like)


@routes.get("/acl/$anonymous", "Access rules of anonymous clients", query=AllQuery, reply=list[AnonymousRecord])
def list_acl_anonymous(call: Call) -> Listing[HalfRecord]:
    return _listing(call, ANONYMOUS)


@routes.get("/acl/$all", "Access rules of all clients", query=AllQuery, reply=list[AllRecord])
def list_acl_all(call: Call) -> Listing[HalfRecord]:
    return _listing(call, ALL)


@routes.get("/acl/clientid/{clientid}", "Access rules of a client ID", reply=list[ClientIdRecord])
def lookup_acl_clientid(call: Call) -> Listing[HalfRecord]:
    return call.operations.acl.halves_of((CLIENT_ID, call.path["clientid"]))


@routes.get("/acl/username/{username}", "Access rules of a username", reply=list[UsernameRecord])
def lookup_acl_username(call: Call) -> Listing[HalfRecord]:
    return call.operations.acl.halves_of((USERNAME, call.path["username"]))


class RuleOfSubject(msgspec.Struct):
    """A rule in the list of its subject."""

    topic: str
    action: Action
    access: Access
    listener: str = ""


class RulesOfSubject(msgspec.Struct):
    """``rules``: all rules that the subject is to have, in the order in which they are checked. ``instead_of``: the
    rules that it has now; if it has others, the node refuses the request."""

    rules: list[RuleOfSubject]
    instead_of: list[RuleOfSubject] | None = None


@routes.put("/acl/clientid/{clientid}", "Replace all access rules of a client ID", body=RulesOfSubject)
async def replace_acl_clientid(call: Call) -> None:
    await _replace(call, (CLIENT_ID, call.path["clientid"]))


@routes.put("/acl/username/{username}", "Replace all access rules of a username", body=RulesOfSubject)
async def replace_acl_username(call: Call) -> None:
    await _replace(call, (USERNAME, call.path["username"]))


@routes.put("/acl/$anonymous", "Replace all access rules of anonymous clients", body=RulesOfSubject)
async def replace_acl_anonymous(call: Call) -> None:
    await _replace(call, (ANONYMOUS, ""))


@routes.put("/acl/$all", "Replace all access rules for all clients", body=RulesOfSubject)
async def replace_acl_all(call: Call) -> None:
    await _replace(call, (ALL, ""))


@routes.delete("/acl/clientid/{clientid}/topic/{topic}", "Delete a client ID's access rules for a topic")
async def delete_acl_clientid(call: Call) -> None:
    await call.operations.acl.delete_of((CLIENT_ID, call.path["clientid"]), call.path["topic"])


@routes.delete("/acl/username/{username}/topic/{topic}", "Delete a username's access rules for a topic")
async def delete_acl_username(call: Call) -> None:
    await call.operations.acl.delete_of((USERNAME, call.path["username"]), call.path["topic"])


@routes.delete("/acl/$anonymous/topic/{topic}", "Delete the access rules of anonymous clients for a topic")
async def delete_acl_anonymous(call: Call) -> None:
    await call.operations.acl.delete_of((ANONYMOUS, ""), call.path["topic"])


@routes.delete("/acl/$all/topic/{topic}", "Delete the access rules of all clients for a topic")
async def delete_acl_all(call: Call) -> None:
    await call.operations.acl.delete_of((ALL, ""), call.path["topic"])


async def _replace(call: Call, subject: Subject) -> None:
    given: RulesOfSubject = call.body
    if len(subject[1].encode("utf-8", "surrogatepass")) > MAX_NAME:
        raise wrong(subject[0], f"expected at most {MAX_NAME} bytes")
    instead_of = None if given.instead_of is None else _new_rules(subject, given.instead_of)
    await call.operations.acl.replace(subject, _new_rules(subject, given.rules), instead_of)


def _new_rules(subject: Subject, given: list[RuleOfSubject]) -> list[NewAclRule]:
    return [NewAclRule(subject, each.topic, each.action, each.access == "allow", each.listener) for each in given]


def _subject(given: NewRecord) -> Subject:
    if (given.clientid is not None) + (given.username is not None) + given.anonymous > 1:
        raise wrong("clientid", "a rule applies to a clientid, a username or anonymous clients: give only one of them")
    if given.anonymous:
        return ANONYMOUS, ""
    if given.clientid is not None:
        return CLIENT_ID, given.clientid
    return (USERNAME, given.username) if given.username is not None else (ALL, "")


def _listing(call: Call, kind: str, name: str | None = None, like: str | None = None) -> Listing[HalfRecord]:
    query: AllQuery = call.query
    topic, action, access, like_topic = query.topic, query.action, query.access, query.like_topic
    filtered = any(each is not None for each in (name, like, topic, action, access, like_topic))

    def matches(record: HalfRecord) -> bool:
        return (
            (name is None or record.name == name)
            and (topic is None or record.topic == topic)
            and (action is None or record.action == action)
            and (access is None or record.access == access)
            and (like is None or like in record.name)
            and (like_topic is None or like_topic in record.topic)
        )

    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.acl.halves_listing(kind, query.page, limit, matches if filtered else None)
