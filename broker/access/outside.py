"""OutsideSource: a source that decides about clients but cannot answer immediately: a service, or an embedding
program."""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, NamedTuple

from ..session.client_info import ClientInfo

ALLOW: Final = "allow"
DENY: Final = "deny"
IGNORE: Final = "ignore"


class Verdict(NamedTuple):
    """``decision``: ``ALLOW``, ``DENY`` or ``IGNORE``. ``failure``: why there was no answer, otherwise empty."""

    decision: str
    failure: str
    setting: str

    @property
    def allowed(self) -> bool | None:
        return None if self.decision == IGNORE else self.decision == ALLOW


class OutsideSource(ABC):
    """One of ``Authorization.sources`` whose answer takes time.

    ``setting``: the key of the setting that enables it, ``-``: none. ``title``: its name in sentences for operators."""

    name: str
    setting: ClassVar[str] = "-"
    title: ClassVar[str] = "a source outside"

    @abstractmethod
    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Return whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter."""
