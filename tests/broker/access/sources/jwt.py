"""Tokens, with rules in them: a token denies what it does not name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import jwt

from . import Setup

SECRET = "s" * 32


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    claims = {"sub": "ann", "acl": {"pub": ["open"]}}
    right, wrong = (jwt.encode(claims, secret, "HS256").encode() for secret in (SECRET, "t" * 32))
    yield Setup(settings={"jwt": {"secret": SECRET}}, right=right, wrong=wrong, denies_rest=True)
