"""SessionRegistry: one session of each Client Identifier."""

import pytest

from taipan.broker.session.registry import SessionRegistry
from taipan.broker.session.session import Session
from tests.support.sessions import make_session


def session(client_id: str) -> Session:
    return make_session(client_id)


def test_one_session_of_each_identifier() -> None:
    """[MQTT-3.1.3-2]"""
    registry = SessionRegistry()
    first, other = session("a"), session("b")
    registry.add(first)
    registry.add(other)
    with pytest.raises(ValueError, match="'a'"):
        registry.add(session("a"))
    assert (registry.get("a"), registry.get("A"), registry.get("c")) == (first, None, None)
    assert "a" in registry and "c" not in registry
    assert len(registry) == 2
    assert list(registry) == [first, other]


def test_only_the_session_itself_is_removed() -> None:
    registry = SessionRegistry()
    first, second = session("a"), session("a")
    registry.add(first)
    assert not registry.remove(second)
    assert registry.remove(first)
    assert not registry.remove(first)
    registry.add(second)
    assert not registry.remove(first)
    assert registry.get("a") is second
