"""Fixtures of the tests of the cluster."""

from tests.support.fixtures import certificates as certificates
