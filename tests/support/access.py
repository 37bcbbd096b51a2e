"""Authentication and authorization in few words. None: no decision."""

from collections.abc import Awaitable

from taipan.broker.access.acl import AclRuleSource
from taipan.broker.access.auth_result import AuthOutcome
from taipan.broker.access.control import AccessControl
from taipan.broker.session.client_info import ClientInfo


def decided(source: AclRuleSource, client: ClientInfo, action: str, topic: str) -> bool | None:
    decision = source.decide(client, action, topic)
    return None if decision is None else decision.allowed


def authorized(
    access: AccessControl, client: ClientInfo, action: str, topic: str, now: float | None = None
) -> bool | None:
    decision = access.authorization.authorize(client, action, topic, now)
    return None if decision is None else decision.allowed


def authenticate(
    access: AccessControl, client: ClientInfo, password: bytes | None, proved_by: str = ""
) -> AuthOutcome | Awaitable[AuthOutcome]:
    return access.authentication.authenticate(client, password, proved_by)
