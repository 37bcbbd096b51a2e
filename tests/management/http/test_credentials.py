"""Credentials: who counts as one when somebody guesses."""

import pytest

from management.http.credentials import origin_of


@pytest.mark.parametrize(
    "host, origin",
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_of_one_owner_is_one_origin(host: str, origin: str) -> None:
    assert origin_of(host) == origin
