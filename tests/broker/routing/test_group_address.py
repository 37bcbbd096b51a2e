import pytest

from taipan.broker.routing.group_address import GroupAddress


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (GroupAddress("$share/g/t"), "$share/g/t"),
        (GroupAddress("$share/g/t", ("a",)), "$share/g/t\0a"),
        (GroupAddress("$share/g/t/#", ("a", "b")), "$share/g/t/#\0a\0b"),
    ],
)
def test_the_text_that_links_and_stores_have_is_the_address(address: GroupAddress, text: str) -> None:
    assert address.text == text
    assert GroupAddress.parse(text) == address
