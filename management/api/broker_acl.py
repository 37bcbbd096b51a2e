"""/broker_acl: access rules by login, in the order in which they were added and are checked."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ..http.envelope import Extra
from ..http.routes import Call, Empty, Endpoints, OrEmpty
from ..operations.acl import OK, AclRecord, Action, NewAclRule, rule_record, subject_of
from ..operations.listing import Listing, PageQuery, everything

routes = Endpoints("ACL rules")


class NewAcl(msgspec.Struct):
    """Access rules of a ``login``: a username, ``$all`` or ``$anonymous``."""

    login: Annotated[str, Meta(min_length=1, max_length=65_535)]
    topic: str
    action: Action
    allow: bool
    listener: str = ""


@routes.get("/broker_acl", "Access rules", query=PageQuery, reply=list[AclRecord])
def list_broker_acl(call: Call) -> Listing[AclRecord]:
    return call.operations.acl.listing(call.query.page, call.query.rows(call.operations.settings.max_row_limit))


@routes.get("/broker_acl/{login}", "Access rules of a login", reply=OrEmpty(list[AclRecord] | AclRecord))
def lookup_broker_acl(call: Call) -> AclRecord | Listing[AclRecord] | Empty:
    """As in EMQX: ``{}`` if there are no rules, an object for one rule, an array for several, newest first."""
    rules = call.operations.acl.lookup(call.path["login"])
    if len(rules) > 1:
        return everything(reversed(rules), rule_record)
    return rule_record(rules[0]) if rules else {}


@routes.post("/broker_acl", "Add access rules", body=list[NewAcl] | NewAcl, reply=dict[str, str])
async def add_broker_acl(call: Call) -> dict[str, str] | Extra:
    """``meta.without_effect`` lists rules that never decide, because rules before them decide the opposite."""
    given = call.body if isinstance(call.body, list) else [call.body]
    idle = await call.operations.acl.add(
        [NewAclRule(subject_of(each.login), each.topic, each.action, each.allow, each.listener) for each in given]
    )
    results = {each.login: OK for each in given}
    return Extra(results, meta={"without_effect": idle}) if idle else results


@routes.delete("/broker_acl/{login}/{topic}", "Delete a login's access rules for a topic")
async def delete_broker_acl(call: Call) -> None:
    await call.operations.acl.delete(call.path["login"], call.path["topic"])
