"""Alarms: raised once, over once, remembered within bounds, told as EMQX 4.x tells them."""

import json

import pytest

from taipan.broker.mqtt.constants import CONTENT_TYPE
from taipan.broker.mqtt.message import Message
from taipan.broker.observability.alarms import RaisedAlarms
from tests.support.clock import Clock


class AlarmsHarness:
    def __init__(self, history: int = 3) -> None:
        self.clock = Clock(1_700_000_000.5)
        self.told: list[Message] = []
        self.alarms = RaisedAlarms("n@h", self.told.append, self.clock, history)


def test_an_alarm_is_told_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    harness = AlarmsHarness()
    assert harness.alarms.activate("store_trouble", "no space", {"file": "f"})
    harness.clock.advance(2)
    assert not harness.alarms.activate("store_trouble", "something else")
    assert harness.alarms.deactivate("store_trouble")
    assert not harness.alarms.deactivate("store_trouble")
    begun, over = harness.told
    assert begun.topic == "$SYS/brokers/n@h/alarms/activate" and over.topic == "$SYS/brokers/n@h/alarms/deactivate"
    assert json.loads(begun.payload) == {
        "activated": True,
        "name": "store_trouble",
        "message": "no space",
        "details": {"file": "f"},
        "activate_at": 1_700_000_000_500_000,
        "deactivate_at": "infinity",
        "duration": 0,
    }
    assert json.loads(over.payload) == {
        "activated": False,
        "name": "store_trouble",
        "message": "no space",
        "details": {"file": "f"},
        "activate_at": 1_700_000_000_500_000,
        "deactivate_at": 1_700_000_002_500_000,
        "duration": 2_000_000,
    }
    assert {begun.qos, over.qos} == {0} and not begun.retain
    assert begun.properties == {CONTENT_TYPE: "application/json"}
    assert [each.getMessage() for each in caplog.records] == [
        "alarm_activated name=store_trouble message=no space",
        "alarm_deactivated name=store_trouble message=no space",
    ]


def test_the_history_is_bounded_and_can_be_forgotten() -> None:
    harness = AlarmsHarness(history=2)
    for name in "abc":
        harness.alarms.activate(name, name)
        harness.alarms.deactivate(name)
    harness.alarms.activate("d", "d")
    assert [(each["name"], each["activated"]) for each in harness.alarms.records()] == [
        ("d", True),
        ("c", False),
        ("b", False),
    ]
    harness.alarms.forget()
    assert [each["name"] for each in harness.alarms.records()] == ["d"]


def test_the_duration_of_an_active_alarm_grows() -> None:
    harness = AlarmsHarness()
    harness.alarms.activate("a", "a")
    harness.clock.advance(1.5)
    (record,) = harness.alarms.records()
    assert record["duration"] == 1_500_000 and record["deactivate_at"] == "infinity"
