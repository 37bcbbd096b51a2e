"""[access.ldap] without a server: names, messages, and settings that are refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.access.ldap.declaration import SOURCE, LdapAccessSettings
from taipan.broker.access.ldap.message import BadAnswer, bind, missing_bytes, read, search
from taipan.broker.access.ldap.names import escaped, name_of


def test_names() -> None:
    assert escaped("ann") == "ann"
    assert escaped('a,b+c"d\\e<f>g;h=i#j k\0') == "a\\2cb\\2bc\\22d\\5ce\\3cf\\3eg\\3bh\\3di\\23j\\20k\\00"
    assert escaped("ë") == "\\c3\\ab"
    settings = {"username_attr": "uid", "device_dn": "ou=device"}
    template = "${username_attr}=${user},${device_dn}"
    assert name_of(template, settings, "ann") == "uid=ann,ou=device"
    # A value is not searched for placeholders again.
    assert name_of(template, settings, "${device_dn}") == "uid=$\\7b".replace("\\7b", "{") + "device_dn},ou=device"


def test_a_request_has_its_length() -> None:
    made = bind(1, b"cn=root", b"secret")
    assert missing_bytes(made) == 0 and missing_bytes(made[:1]) is None and missing_bytes(made[:2]) == len(made) - 2
    long = search(2, "ou=x", ("and", [("a", b"x" * 300), ("or", [("b", b"y"), ("c", b"z")])]), ["userPassword"], 1)
    assert missing_bytes(long[:2]) is None and missing_bytes(long[:4]) == len(long) - 4


@pytest.mark.parametrize(
    "head", [b"HT", b"\x30\x80", b"\x30\x85", b"\x30\x84\x7f\xff\xff\xff", b"\x30\x83\x10\x00\x01"]
)
def test_a_length_that_is_refused(head: bytes) -> None:
    with pytest.raises(BadAnswer):
        missing_bytes(head)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message(data: bytes) -> None:
    try:
        read(data)
    except BadAnswer:
        pass


FAULTS: dict[str, dict[str, Any]] = {
    "needs bind_password": {"bind_dn": "cn=root"},
    "needs bind_dn": {"bind_password": "x"},
    "${user} is missing": {"custom_base_dn": "${device_dn}"},
    "${password} is not one of": {"custom_base_dn": "uid=${user},${password}"},
    "${user} is possible only in a value": {"filters": [{"key": "${user}", "value": "x"}]},
    "and and or alternate too often": {
        "filters": [{"key": "a", "value": "b", "op": op} for op in ("and", "or", "and", "or", "and")]
    },
    "tls encrypts from the first byte on": {"tls": True, "start_tls": True},
    "needs certfile": {"keyfile": "x"},
    "expected a server": {"servers": " , "},
    "expected a port": {"servers": "a:0"},
    "expected the name of an attribute": {"username_attributetype": ""},
}


@pytest.mark.parametrize("words", FAULTS)
def test_settings_that_are_refused(words: str) -> None:
    settings = msgspec.convert(FAULTS[words], LdapAccessSettings)
    told = [fault.what for fault in SOURCE.faults(settings)]
    for key, rule in SOURCE.rules.items():
        told += [fault.what for fault in rule(getattr(settings, key))]
    assert any(words in each for each in told), told
