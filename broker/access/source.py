"""Source: what a source of access is made of, once its declaration is read; and what it is given.

A source has an authenticator, an authorizer, or both. Each of the two answers from memory or has to be waited for:

    authenticator    users.UserSource          a list of users with hashes of passwords: the node verifies these
                     auth_result.Authenticator verifies credentials by itself, at once or later
    authorizer       acl.AclRuleSource         rules in memory
                     outside.OutsideSource     has to be waited for
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ..config import AccessSettings
from ..loop.clock import Clock
from ..session.client_info import ClientInfo

if TYPE_CHECKING:
    from .acl import AclRuleSource
    from .auth_result import Authenticator
    from .outside import OutsideSource
    from .scram import ScramVerifier
    from .users import UserSource


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What the node gives a source. ``access``: the whole of ``[access]``. ``count``: counts a reason why there was no
    answer."""

    clock: Clock
    count: Callable[[str], None]
    access: AccessSettings


class Source:
    """The base of all sources of the settings. Belongs to one event loop.

    ``knows_superusers``: the source can say of a client that another has authenticated whether it is a superuser.
    ``of_login``: its rules come with a login, so that a client that is not connected has none.
    ``without_outcome``: why the authenticator leaves a client to the next source. ``without_decision``: why the
    authorizer leaves a topic to the next source. Both are shown to operators.
    """

    of_login: ClassVar[bool] = False
    without_outcome: ClassVar[str] = "leaves it to the next source"
    without_decision: ClassVar[str] = "no rule here matches"

    def __init__(self, name: str) -> None:
        self.name = name

    def authenticator(self) -> "UserSource | Authenticator | None":
        """What says who a client is; None: others do."""
        return None

    def authorizer(self) -> "AclRuleSource | OutsideSource | None":
        """What says what a client may do; None: others do."""
        return None

    @property
    def knows_superusers(self) -> bool:
        return False

    async def is_superuser(self, client: ClientInfo) -> bool:
        """Asked only where ``knows_superusers``; a failure is a no."""
        return False

    def keeps(self, username: str) -> bool:
        """Whether the source has a user of this name whom no stored one can replace."""
        return False

    def scram_verifiers(self) -> "list[ScramVerifier]":
        """The keys of users for SCRAM, in a lasting order: unknown users are given parameters like theirs."""
        return []

    # The life of a source: made, started, and either retired or halted and stopped.

    def start(self) -> None:
        """On the running loop: start the background work, such as fetching keys."""

    def halt(self) -> None:
        """The node stops: end the background work. Questions are still answered."""

    def retire(self) -> None:
        """A reload puts another in this source's place: answer what was asked, then end."""
        self.halt()

    @property
    def busy(self) -> bool:
        """Whether a retired source still has something to answer or to close."""
        return False

    async def stop(self) -> None:
        """End now; open questions fail."""
        self.halt()


class SourceParts(NamedTuple):
    """What the methods of a source have returned."""

    source: Source
    authenticator: "UserSource | Authenticator | None"
    authorizer: "AclRuleSource | OutsideSource | None"
    knows_superusers: bool
    scram_verifiers: "list[ScramVerifier]"


def parts_of(source: Source) -> SourceParts:
    """Ask a source for its parts. Raises what its methods raise."""
    return SourceParts(
        source, source.authenticator(), source.authorizer(), source.knows_superusers, list(source.scram_verifiers())
    )
