"""Counters: names, totals, and reasons that cannot grow without bound."""

from dataclasses import fields

import pytest

from taipan.broker.observability.metrics import MAX_REASONS, NAMES, OTHER, Metrics, Reasons

SPECIFIED = """
actions.success actions.failure rules.matched bytes.received bytes.sent
client.authenticate client.auth.anonymous client.connect client.connack client.connected client.disconnected
client.check_acl client.subscribe client.unsubscribe
delivery.dropped delivery.dropped.too_large delivery.dropped.queue_full delivery.dropped.qos0_msg
delivery.dropped.expired delivery.dropped.no_local
messages.delayed messages.delivered messages.dropped messages.dropped.expired messages.dropped.no_subscribers
messages.forward messages.publish messages.qos0.received messages.qos1.received messages.qos2.received
messages.qos0.sent messages.qos1.sent messages.qos2.sent messages.received messages.sent messages.retained
messages.acked
packets.received packets.sent packets.connect.received packets.connack.auth_error packets.connack.error
packets.connack.sent
packets.publish.received packets.publish.sent packets.publish.inuse packets.publish.auth_error packets.publish.error
packets.publish.dropped
packets.puback.received packets.puback.sent packets.puback.inuse packets.puback.missed packets.pubrec.received
packets.pubrec.sent packets.pubrec.inuse packets.pubrec.missed packets.pubrel.received packets.pubrel.sent
packets.pubrel.missed packets.pubcomp.received packets.pubcomp.sent packets.pubcomp.inuse packets.pubcomp.missed
packets.subscribe.received packets.subscribe.error packets.subscribe.auth_error packets.suback.sent
packets.unsubscribe.received packets.unsubscribe.error packets.unsuback.sent
packets.pingreq.received packets.pingresp.sent packets.disconnect.received packets.disconnect.sent
packets.auth.received packets.auth.sent
session.created session.discarded session.resumed session.takeovered session.terminated
"""

EMQX_4_4 = """
client.auth.success client.auth.success.anonymous client.auth.failure client.auth.ignore client.acl.allow
client.acl.deny client.acl.ignore client.acl.cache_hit messages.dropped.await_pubrel_timeout
"""


COMPUTED = {name for name in NAMES if name.replace(".", "_") not in {each.name for each in fields(Metrics)}}


def counted() -> list[str]:
    return [name for name in NAMES if name not in COMPUTED]


def test_every_name_of_the_specification_and_of_emqx_is_there_once() -> None:
    assert sorted(NAMES) == sorted((SPECIFIED + EMQX_4_4).split())


def test_snapshot_starts_at_zero_in_the_order_of_the_names() -> None:
    assert list(Metrics().snapshot().items()) == [(name, 0) for name in NAMES]


@pytest.mark.parametrize("name", counted())
def test_counting_shows_under_the_dotted_name(name: str) -> None:
    metrics = Metrics()
    attribute = name.replace(".", "_")
    setattr(metrics, attribute, getattr(metrics, attribute) + 3)
    changed = {each for each, value in metrics.snapshot().items() if value}
    assert metrics.snapshot()[name] == 3
    assert changed <= {name} | COMPUTED


@pytest.mark.parametrize("name", sorted(COMPUTED))
def test_a_total_cannot_be_counted_by_hand(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Metrics(), name.replace(".", "_"), 1)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError):
        Metrics().packets_pubax_sent = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "total, parts",
    [
        ("packets.received", [name for name in NAMES if name.startswith("packets.") and name.count(".") == 2
                              and name.endswith(".received")]),
        ("packets.sent", [name for name in NAMES if name.startswith("packets.") and name.count(".") == 2
                          and name.endswith(".sent")]),
        ("messages.received", [f"messages.qos{qos}.received" for qos in range(3)]),
        ("messages.sent", [f"messages.qos{qos}.sent" for qos in range(3)]),
        ("packets.publish.sent", [f"messages.qos{qos}.sent" for qos in range(3)]),
        ("delivery.dropped", [name for name in NAMES if name.startswith("delivery.dropped.")]),
        ("messages.dropped", ["messages.dropped.await_pubrel_timeout", "messages.dropped.no_subscribers"]),
        ("messages.dropped.expired", ["messages.dropped.await_pubrel_timeout"]),
        ("client.auth.success.anonymous", ["client.auth.anonymous"]),
    ],
)  # fmt: skip
def test_totals_are_the_sum_of_their_parts(total: str, parts: list[str]) -> None:
    metrics = Metrics()
    for at, name in enumerate(counted()):
        setattr(metrics, name.replace(".", "_"), 1 << at)
    values = metrics.snapshot()
    assert values[total] == sum(values[part] for part in parts) > 0


def test_reasons_are_counted_in_order_of_their_first_time() -> None:
    reasons = Reasons()
    reasons.add("normal")
    reasons.add("kicked", 2)
    reasons.add("normal")
    assert list(reasons.snapshot().items()) == [("normal", 2), ("kicked", 2)]


def test_reasons_are_bounded() -> None:
    reasons = Reasons()
    for number in range(10_000):
        reasons.add(f"reason {number}")
    reasons.add("reason 0")
    counts = reasons.snapshot()
    assert len(counts) == MAX_REASONS
    assert counts["reason 0"] == 2
    assert counts[OTHER] == 10_000 - (MAX_REASONS - 1)
