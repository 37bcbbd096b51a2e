"""The end of a broker of aMQTT, for tests."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from tests.support.patience import patience

PATIENCE: Final = 10.0


async def shut_down(broker: Any) -> None:
    """End it. On Python 3.13 it may wait for ever for connections to end, after its listeners are closed: then it is
    left alone."""
    with suppress(TimeoutError):
        await asyncio.wait_for(broker.shutdown(), patience(PATIENCE))
