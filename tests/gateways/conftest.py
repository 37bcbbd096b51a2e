"""Fixtures of the tests of gateways."""

from tests.support.fixtures import certificates as certificates
