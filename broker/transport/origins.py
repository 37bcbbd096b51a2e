"""Origins: pages of which sites may connect to a WebSocket listener, by the ``Origin`` that their browser sends."""

import re
from collections.abc import Sequence
from typing import Final

from websockets.typing import Origin

from ..config import ListenerSettings, ZoneSettings

ANY: Final = "*"
LOOPBACK: Final = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Origins of this machine's own pages. A name of another site that its DNS points to 127.0.0.1 is none."""

Origins = Sequence[Origin | re.Pattern[str] | None]


def accepted_origins(settings: ListenerSettings, zone: ZoneSettings, loopback: bool) -> Origins | None:
    """Those that may connect, ``None`` among them for a client that sends no Origin; ``None`` instead of a list: any.

    Browsers always tell; a device that is none has no origin to tell and no user to protect. Where anonymous clients
    are let in because only this machine reaches the listener, a page of any site that is read on this machine
    reaches it too: it is refused unless ``allowed_origins`` names it.
    """
    given = settings.allowed_origins
    if ANY in given:
        return None
    if given:
        return [None, *(Origin(origin) for origin in given)]
    if loopback and zone.allow_anonymous is None:
        return [None, LOOPBACK]
    return None
