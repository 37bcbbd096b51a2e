"""Addresses of peers: each compared and shown in one form."""

import pytest

from taipan.broker.session.client_info import authority, ip_address_of


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
