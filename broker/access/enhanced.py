"""Enhanced authentication (MQTT 5.0 section 4.12): the interface of a method for the channel."""

from dataclasses import dataclass
from typing import Final, Protocol

from ..mqtt import reason_codes
from ..session.client_info import ClientInfo

CONTINUE: Final = "continue"
SUCCESS: Final = "success"
FAILURE: Final = "failure"


@dataclass(slots=True)
class AuthStep:
    """The next step of the Server.

    ``CONTINUE``: AUTH with 0x18 and ``data``. ``SUCCESS``: CONNACK (or AUTH 0x00) with ``data``; the client is
    ``username``, verified by ``proved_by``. ``FAILURE``: CONNACK or DISCONNECT with ``reason_code``; ``detail`` and
    ``setting`` (the key of the configuration that decided, ``-``: none) are for the log, never for the peer. ``wrong``:
    the proof was wrong, and may have been a guess."""

    status: str
    data: bytes = b""
    username: str | None = None
    is_superuser: bool = False
    reason_code: int = reason_codes.SUCCESS
    detail: str = ""
    setting: str = "-"
    proved_by: str = ""
    wrong: bool = False


class Exchange(Protocol):
    """One run of a method with one client. ``username`` is the name that the client gives, not verified yet; ``""``:
    not given yet."""

    username: str

    def step(self, data: bytes | None) -> AuthStep:
        """Process the Authentication Data of CONNECT (``None``: it had none) or of the next AUTH packet."""
        ...


class EnhancedMethod(Protocol):
    """An Authentication Method, such as ``SCRAM-SHA-256``."""

    name: str

    def start(self, client: ClientInfo) -> Exchange:
        """Begin an exchange. Its first ``step`` receives the data of CONNECT (or of AUTH 0x19)."""
        ...
