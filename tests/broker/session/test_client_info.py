"""Addresses of peers: each compared and shown in one form."""

import pytest

from taipan.broker.session.client_info import authority, ip_address_of, is_loopback


@pytest.mark.parametrize(
    "host, address",
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::FFFF:c000:201", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::192.0.2.1", "::c000:201"),
    ],
)
def test_an_address(host: str, address: str) -> None:
    assert str(ip_address_of(host)) == address


@pytest.mark.parametrize("host", ["", "localhost", "192.0.2.256", "/run/socket"])
def test_no_address(host: str) -> None:
    assert ip_address_of(host) is None


@pytest.mark.parametrize("host, text", [("192.0.2.1", "192.0.2.1:1"), ("::1", "[::1]:1"), ("a.example", "a.example:1")])
def test_an_authority(host: str, text: str) -> None:
    assert authority(host, 1) == text


@pytest.mark.parametrize(
    "host, loopback",
    [
        ("127.0.0.2", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost", False),
    ],
)
def test_whether_only_this_machine_reaches_it(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
