"""Source: the parts of a source of access, created from its declaration, and the data that it receives.

A source has an authenticator, an authorizer, or both. Each of the two answers from memory, or takes time to answer:

    authenticator    users.UserSource          a list of users with hashes of passwords: the node verifies these
                     auth_result.Authenticator verifies credentials itself, immediately or later
    authorizer       acl.AclRuleSource         rules in memory
                     outside.OutsideSource     its answer has to be waited for
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ..config import AccessSettings
from ..loop.clock import Clock
from ..session.client_info import ClientInfo

if TYPE_CHECKING:
    from .acl import AclRuleSource
    from .auth_result import Authenticator, AuthOutcome
    from .outside import OutsideSource
    from .password_hash import PasswordVerifier
    from .remote import RemoteSource
    from .scram import ScramVerifier
    from .users import UserSource


def _not_told(source: "RemoteSource") -> None:
    """Without alarms, do nothing."""


async def _refused(
    client: ClientInfo, username: str, verifier: "PasswordVerifier", password: bytes
) -> "AuthOutcome | None":
    """Refuse to hash, because there are no hash threads without a node."""
    from .auth_result import STOPPING

    return STOPPING


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The data that a source receives from the node. ``access``: the whole of ``[access]``. ``count``: counts a reason
    why there was no answer. ``status_changed``: called when a remote source is connected or down.
    ``verify``: verifies a password that the source knows a hash of, see ``Passwords.verify``. ``node``: its name."""

    clock: Clock
    count: Callable[[str], None]
    access: AccessSettings
    status_changed: "Callable[[RemoteSource], None]" = _not_told
    verify: "Callable[[ClientInfo, str, PasswordVerifier, bytes], Awaitable[AuthOutcome | None]]" = _refused
    node: str = ""


class Source:
    """The base of all sources of the settings. Belongs to one event loop.

    ``knows_superusers``: the source knows whether a client that another source has authenticated is a superuser.
    ``of_login``: its rules come with a login, so an offline client has none. ``without_outcome``: why the authenticator
    leaves a client to the next source. ``without_decision``: why the authorizer leaves a topic to the next source. Both
    are shown to operators."""

    of_login: ClassVar[bool] = False
    without_outcome: ClassVar[str] = "leaves it to the next source"
    without_decision: ClassVar[str] = "no rule here matches"

    def __init__(self, name: str) -> None:
        self.name = name

    def authenticator(self) -> "UserSource | Authenticator | None":
        """Return the part that authenticates clients; None: there is none."""
        return None

    def authorizer(self) -> "AclRuleSource | OutsideSource | None":
        """Return the part that authorizes clients; None: there is none."""
        return None

    @property
    def knows_superusers(self) -> bool:
        return False

    async def is_superuser(self, client: ClientInfo) -> bool:
        """Called only if ``knows_superusers`` is set; after a failure, the answer is False."""
        return False

    def keeps(self, username: str) -> bool:
        """Return whether the source has a user with this name that no stored user can replace."""
        return False

    def scram_verifiers(self) -> "list[ScramVerifier]":
        """Return the SCRAM keys of users, in a stable order: unknown users get similar parameters."""
        return []

    # The life of a source: created, started, and then either retired, or halted and stopped.

    def start(self) -> None:
        """Start the background work, such as fetching keys, on the running loop."""

    def halt(self) -> None:
        """End the background work, because the node stops. Questions are still answered."""

    def retire(self) -> None:
        """Answer the open questions, then end, because a reload replaces this source."""
        self.halt()

    @property
    def busy(self) -> bool:
        """Whether a retired source still has questions to answer or connections to close."""
        return False

    async def stop(self) -> None:
        """Stop now; open questions fail."""
        self.halt()


class SourceParts(NamedTuple):
    """The results of a source's methods."""

    source: Source
    authenticator: "UserSource | Authenticator | None"
    authorizer: "AclRuleSource | OutsideSource | None"
    knows_superusers: bool
    scram_verifiers: "list[ScramVerifier]"


def parts_of(source: Source) -> SourceParts:
    """Return the parts of a source. Raises the errors of its methods."""
    return SourceParts(
        source, source.authenticator(), source.authorizer(), source.knows_superusers, list(source.scram_verifiers())
    )
