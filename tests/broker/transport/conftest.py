"""Fixtures of the tests of transport."""

from tests.support.fixtures import certificates as certificates
