"""What a publisher that may have left may still publish, and by which session a client is known again."""

from collections.abc import Iterator

import pytest

from taipan.broker.access.control import AccessControl
from taipan.broker.access.guesses import was_here
from taipan.broker.access.publisher_rights import PublisherRights
from taipan.broker.config import AccessSettings, RuleSettings, ZoneSettings
from taipan.broker.mqtt.message import Message
from taipan.broker.session.client_info import CLIENT_ID_OWNER, ClientInfo
from taipan.broker.session.registry import SessionRegistry
from tests.support.clock import Clock
from tests.support.sessions import make_session

ZONE = ZoneSettings()
RULES = [RuleSettings(allow=False, topics=["secret/#"], action="publish")]


@pytest.fixture
def access() -> Iterator[AccessControl]:
    control = AccessControl(AccessSettings(rules=RULES, no_match="allow"), Clock())  # type: ignore[arg-type]
    yield control
    control.close()


def client(username: str | None = None) -> ClientInfo:
    return ClientInfo("n", ZONE, client_id="c", peer_host="192.0.2.1", username=username)


def test_retained_messages_are_judged_by_the_rules_of_today(access: AccessControl) -> None:
    rights = PublisherRights(access)
    assert rights.may_be_retained(Message("secret/a"))  # the node's own
    assert rights.may_be_retained(Message("open", publisher=client()))
    assert not rights.may_be_retained(Message("secret/a", publisher=client()))


def test_rules_are_asked_without_the_mount_point(access: AccessControl) -> None:
    rights = PublisherRights(access)
    tenant = client()
    tenant.mountpoint = "tenant/"
    decision = rights.decide(tenant, "tenant/secret/a")
    assert decision is not None and not decision.allowed and decision.setting == "access.rules.0"
    assert rights.may_be_retained(Message("tenant/open", publisher=tenant))


def test_nobody_may_publish_without_a_name(access: AccessControl) -> None:
    decision = PublisherRights(access).decide(None, "open")
    assert decision is not None and not decision.allowed


def test_a_superuser_that_is_none_any_more(access: AccessControl) -> None:
    publisher = client("root")
    publisher.is_superuser = True
    assert not PublisherRights(access).may_be_retained(Message("secret/a", publisher=publisher))
    assert not publisher.is_superuser


def test_a_session_shows_who_was_here() -> None:
    sessions = SessionRegistry()
    session = make_session("c")
    session.client = client("ann")
    sessions.add(session)
    assert was_here(sessions, client("ann"))
    assert not was_here(sessions, client("bob")) and not was_here(sessions, client())
    assert not was_here(sessions, ClientInfo("n", ZONE, client_id="c", peer_host="192.0.2.2", username="ann"))
    assert not was_here(sessions, ClientInfo("n", ZONE, client_id="d", peer_host="192.0.2.1", username="ann"))
    session.client = client()
    assert not was_here(sessions, client())
    session.owner = CLIENT_ID_OWNER
    assert was_here(sessions, client())
