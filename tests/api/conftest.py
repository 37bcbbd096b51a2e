"""Fixtures of the tests of the management API."""

from tests.support.fixtures import certificates as certificates
from tests.support.fixtures import sink as sink
