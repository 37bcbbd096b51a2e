"""AccessControl: authentication and authorization of a node, with the settings and the services they share."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..config import AccessSettings
from ..loop.clock import Clock
from ..session.client_info import ClientInfo
from .acl import AclRuleSource, ConfiguredAclRules
from .auth_result import Authenticator
from .authentication import Authentication
from .authorization import Authorization
from .banned import Ban, Banned
from .outside import OutsideSource
from .users import ConfiguredUsers, UserSource

if TYPE_CHECKING:
    from .http import HttpSource
    from .jwt import JwtSource


class AccessControl:
    """Who may connect, publish and subscribe. Belongs to one event loop.

    ``lost``: why no client is let in at all, ``""`` where all rows are there that ``tables`` keep.
    """

    def __init__(
        self,
        settings: AccessSettings,
        clock: Clock,
        *,
        stored_users: UserSource | None = None,
        stored_rules: AclRuleSource | None = None,
        banned: Banned | None = None,
        count: Callable[[str], None] | None = None,
        was_here: Callable[[ClientInfo], bool] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """``ValueError`` for a hash or a rule that cannot be read.

        ``count``: told each reason why a client waits, is refused, or a service gave no answer. ``was_here``: whether a
        session shows that a client was let in before. ``on_change``: called when rules have changed.
        """
        self.lost = ""
        self._clock = clock
        self._banned = banned
        self._stored_rules = stored_rules
        self._count = count or _not_counted
        self.http: HttpSource | None = None
        self.jwt: JwtSource | None = None
        self._started = False
        self._retiring: list[HttpSource] = []
        self.authentication = Authentication(settings, clock, stored_users, self._count, was_here or _never_here)
        self.authorization = Authorization(clock, on_change or _no_reviews)
        self._load(settings)

    def _load(self, settings: AccessSettings) -> None:
        # Each may raise: build them before anything changes.
        users = ConfiguredUsers(settings.users)
        rules = ConfiguredAclRules(settings.rules)
        http, jwt = self.http, self.jwt
        if settings.http is None:
            http = None
        elif http is None or http.settings != settings.http:
            # Imported here, both: a node without such a service needs none of aiohttp, PyJWT and cryptography.
            from .http import HttpSource

            http = HttpSource(settings.http, self._clock, self._count)
        if settings.jwt is None:
            jwt = None
        elif jwt is None or jwt.settings != settings.jwt:
            from .jwt import JwtSource

            jwt = JwtSource(settings.jwt, self._clock)
        self._replace_services(http, jwt)
        self.settings = settings
        self.authentication.reload(settings, users, http, jwt)
        self.authorization.reload(settings, {"configuration": rules, "stored": self._stored_rules, "jwt": jwt}, http)

    def _replace_services(self, http: "HttpSource | None", jwt: "JwtSource | None") -> None:
        if self.http is not None and self.http is not http:
            self._retiring = [each for each in self._retiring if each.busy]
            self._retiring.append(self.http)
            self.http.retire()
        if self.jwt is not jwt:
            if self.jwt is not None:
                self.jwt.retire()
            if jwt is not None and self._started:
                jwt.start()
        self.http, self.jwt = http, jwt

    def add(self, source: Authenticator | AclRuleSource | OutsideSource) -> None:
        """A source of the program that the node is in. It counts for the clients to come, and for all decisions."""
        if isinstance(source, Authenticator):
            self.authentication.add(source)
        else:
            self.authorization.add(source)

    def start(self) -> None:
        """On the running loop: begin what goes on by itself."""
        self._started = True
        if self.jwt is not None:
            self.jwt.start()

    def reload(self, settings: AccessSettings) -> None:
        """Take new users and rules; ``ValueError`` leaves the old ones in force. Verified credentials and cached
        decisions of all clients are void."""
        self._load(settings)
        self.authorization.forget_decisions()
        self.authentication.passwords.verified.clear()

    def close(self) -> None:
        """Stop the hash threads; clients that wait for one, or come later, are told that the Server is unavailable."""
        self.authentication.passwords.close()
        if self.jwt is not None:
            self.jwt.retire()

    async def stop(self) -> None:
        """``close``, and the connections to services outside."""
        self.close()
        for source in (self.http, *self._retiring):
            if source is not None:
                await source.close()

    def ban_of(self, client: ClientInfo) -> Ban | None:
        """The ban that keeps this client out; it is looked for before the client is asked who it is."""
        return self._banned.find(client) if self._banned is not None else None


def _not_counted(reason: str) -> None:
    """No metrics."""


def _never_here(client: ClientInfo) -> bool:
    return False


def _no_reviews() -> None:
    """No sessions to review."""
