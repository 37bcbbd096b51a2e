"""Origins: the sites whose pages may connect to a WebSocket listener, by the ``Origin`` header of the browser."""

import re
from collections.abc import Sequence
from typing import Final

from websockets.typing import Origin

from ..config import ListenerSettings, ZoneSettings

ANY: Final = "*"
LOOPBACK: Final = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Origins of pages on this machine. The name of another site whose DNS points to 127.0.0.1 is not one of them."""

Origins = Sequence[Origin | re.Pattern[str] | None]


def accepted_origins(settings: ListenerSettings, zone: ZoneSettings, loopback: bool) -> Origins | None:
    """Return the origins that may connect, including ``None`` for clients without an Origin; ``None`` instead of a
    list: any.

    Browsers always send an Origin; devices have none, and no user to protect. If anonymous clients are accepted because
    only this machine can reach the listener, a page of any site that is opened on this machine can reach it as well: it
    is refused unless ``allowed_origins`` contains its site."""
    given = settings.allowed_origins
    if ANY in given:
        return None
    if given:
        return [None, *(Origin(origin) for origin in given)]
    if loopback and zone.allow_anonymous is None:
        return [None, LOOPBACK]
    return None
