"""The source of a package: ``tests/packages/keypad``."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from . import Setup


async def _set_away(away: bool) -> None:
    keypad: Any = sys.modules["taipan_keypad"]
    keypad.away = away


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    settings = {"keypad": {"codes": {"ann": "right"}, "doors": {"open": True, "shut": False}}}
    try:
        yield Setup(settings=settings, reads_filters=True, away=lambda: _set_away(True), back=lambda: _set_away(False))
    finally:
        await _set_away(False)
