"""What a test does where a program or library that it wants is not there."""

import os
from typing import NoReturn

import pytest


def absent(what: str) -> NoReturn:
    """Skip because it is not installed; where the continuous integration should have put it there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")
