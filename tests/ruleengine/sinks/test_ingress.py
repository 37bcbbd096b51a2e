"""Ingress of a bridge: topics there, and topics here."""

import pytest

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.sinks.mqtt_bridge.ingress import read_ingress


@pytest.mark.parametrize(
    "remote, prefix, local, topic, here",
    [
        ("sites/7/#", "", "${topic}", "sites/7/a", "sites/7/a"),
        ("sites/7/#", "sites/7/", "${topic}", "sites/7/a/b", "a/b"),
        ("sites/7/#", "sites/7/", "cloud/${topic}", "sites/7/a", "cloud/a"),
        ("there", "there", "here${topic}", "there", "here"),
        ("$SYS/broker/#", "$SYS/", "far/${topic}", "$SYS/broker/uptime", "far/broker/uptime"),
    ],
)
def test_a_prefix_is_taken_away(remote: str, prefix: str, local: str, topic: str, here: str) -> None:
    (ingress,) = read_ingress([{"remote_topic": remote, "remote_prefix": prefix, "local_topic": local}])
    assert ingress.local(topic, 0, False) == here


@pytest.mark.parametrize("prefix", ["other/", "sites/+/", "#", 1])
def test_a_prefix_that_is_none(prefix: object) -> None:
    with pytest.raises(ParamError, match="remote_prefix"):
        read_ingress([{"remote_topic": "sites/7/#", "remote_prefix": prefix}])
