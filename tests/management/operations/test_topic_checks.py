"""Every operation refuses an invalid topic in the same words, and names the member of the request."""

import pytest

from taipan.management.operations.refusal import BAD_TOPIC, Refusal
from taipan.management.operations.topic_checks import checked_filter, checked_name, checked_subscription


@pytest.mark.parametrize("topic", ["a", "a/b", "$SYS/x", "/", "é"])
def test_what_is_valid_is_returned(topic: str) -> None:
    assert (
        checked_name("topic", topic) == checked_filter("topic", topic) == checked_subscription("topic", topic) == topic
    )


def test_wildcards_and_shared_filters() -> None:
    assert checked_filter("f", "a/+/#") == "a/+/#"
    assert checked_subscription("f", "$share/g/a/#") == "$share/g/a/#"


@pytest.mark.parametrize(
    "check, topic, message",
    [
        (checked_name, "", "m: '' is not a topic name"),
        (checked_name, "a/#", "m: 'a/#' is not a topic name"),
        (checked_name, "+" * 300, "m: '" + "+" * 256 + "' is not a topic name"),
        (checked_filter, "", "m: '' is not a topic filter"),
        (checked_filter, "a/#/b", "m: 'a/#/b' is not a topic filter"),
        (checked_filter, "a\0", "m: 'a\\x00' is not a topic filter"),
        (checked_subscription, "$share/g", "m: '$share/g' is not a topic filter"),
        (checked_subscription, "", "m: '' is not a topic filter"),
    ],
)
def test_what_is_not_valid_is_refused(check: object, topic: str, message: str) -> None:
    assert callable(check)
    with pytest.raises(Refusal) as refused:
        check("m", topic)
    assert (refused.value.code, refused.value.message) == (BAD_TOPIC, message)
