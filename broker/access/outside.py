"""OutsideSource: whoever decides what a client may do and cannot answer at once: a service, or an embedding program."""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, NamedTuple

from ..session.client_info import ClientInfo

ALLOW: Final = "allow"
DENY: Final = "deny"
IGNORE: Final = "ignore"


class Verdict(NamedTuple):
    """``decision``: ``ALLOW``, ``DENY`` or ``IGNORE``. ``failure``: why there was no answer, else empty."""

    decision: str
    failure: str
    setting: str

    @property
    def allowed(self) -> bool | None:
        return None if self.decision == IGNORE else self.decision == ALLOW


class OutsideSource(ABC):
    """One of ``Authorization.sources`` that has to be waited for.

    ``setting``: the key of the configuration by which it is asked, ``-``: none. ``title``: the source as sentences
    for operators call it.
    """

    name: str
    setting: ClassVar[str] = "-"
    title: ClassVar[str] = "a source outside"

    @abstractmethod
    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Whether it may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter."""
