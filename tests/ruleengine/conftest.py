"""Fixtures of the tests of the rule engine."""

from tests.support.fixtures import certificates as certificates
from tests.support.fixtures import engine as engine
from tests.support.fixtures import sink as sink
