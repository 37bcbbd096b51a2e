"""What a parameter may be is said in JSON's words and in digits."""

from typing import Any

import pytest

from taipan.ruleengine.actions.republish import REPUBLISH
from taipan.ruleengine.params import ParamError, check_params, read_retry_for
from taipan.ruleengine.sinks.mqtt_bridge.ingress import read_ingress
from taipan.ruleengine.sinks.web_hook.resource import TYPE as WEB_HOOK
from tests.support.fake_engine import FakeEngine


def said(call: Any) -> str:
    with pytest.raises(ParamError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize(
    "given, words",
    [
        ("x", "ingress: [1]: expected an object"),
        ({}, "ingress: [1].remote_topic is missing"),
        ({"remote_topic": 1}, "ingress: [1].remote_topic: expected a string"),
        ({"remote_topic": "a", "qos": "1"}, "ingress: [1].qos: expected 0, 1 or 2"),
        ({"remote_topic": "a", "qos": True}, "ingress: [1].qos: expected 0, 1 or 2"),
        ({"remote_topic": "a", "retain": 1}, "ingress: [1].retain: expected true or false"),
        (
            {"remote_topic": "a", "local": "b"},
            "ingress: [1].local: unknown, expected remote_topic, qos, local_topic, remote_prefix, retain",
        ),
    ],
)
def test_a_wrong_ingress(given: Any, words: str) -> None:
    assert said(lambda: read_ingress([{"remote_topic": "a"}, given])) == words


def test_bounds_and_choices() -> None:
    assert said(lambda: read_retry_for({"retry_for": -1})) == "retry_for: expected 0 to 31536000 seconds"
    params = WEB_HOOK.params
    assert (
        said(lambda: check_params({"url": "http://a", "method": "GET"}, params))
        == 'method: expected one of "PUT", "POST"'
    )
    assert said(lambda: check_params({"url": "http://a", "pool_size": 0}, params)) == "pool_size: expected 1 to 256"


def test_choices_of_republish() -> None:
    engine = FakeEngine()
    words = said(lambda: engine.action(REPUBLISH, target_topic="t", target_retain="x"))
    assert words == 'target_retain: expected one of true, false, "true", "false", "1", "0", or one placeholder'
