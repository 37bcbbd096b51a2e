"""AccessControl: authentication and authorization of a node, with their common settings and services."""

from collections.abc import Callable, Sequence

from ..config import AccessSettings
from ..loop.clock import Clock
from ..observability.alarms import RaisedAlarms
from ..session.client_info import ClientInfo
from .acl import AclRuleSource
from .auth_result import Authenticator
from .authentication import Authentication
from .authorization import Authorization
from .banned import Ban, Banned
from .declaration import AccessSource
from .outside import OutsideSource
from .registry import sources_of, table_of
from .remote import RemoteSource
from .remote_status import DOWN
from .source import Source, SourceContext, parts_of


class AccessControl:
    """Decides which clients may connect, publish and subscribe. Belongs to one event loop.

    ``lost``: why no client is accepted at all, ``""`` if no rows of ``tables`` are lost. ``sources``: the active
    sources by name."""

    def __init__(
        self,
        settings: AccessSettings,
        clock: Clock,
        *,
        made: Sequence[Source] = (),
        banned: Banned | None = None,
        count: Callable[[str], None] | None = None,
        was_here: Callable[[ClientInfo], bool] | None = None,
        on_change: Callable[[], None] | None = None,
        alarms: RaisedAlarms | None = None,
        node: str = "",
    ) -> None:
        """Raises ``ValueError`` for a hash or a rule that cannot be read.

        ``made``: sources that the node itself has created, instead of those from ``registry``. ``count``: counts each
        reason why a client waits or is refused, or why a service gave no answer. ``was_here``: whether a session shows
        that a client was accepted before. ``on_change``: called when rules have changed. ``alarms``: where remote
        sources raise an alarm while they are down. ``node``: the node's name."""
        self.lost = ""
        self._clock = clock
        self._node = node
        self._banned = banned
        self._count = count or _not_counted
        self._alarms = alarms
        self._made = {source.name: source for source in made}
        self.sources: dict[str, Source] = {}
        # The settings of each source that has some: while they do not change, the source stays.
        self._tables: dict[str, object] = {}
        self._started = False
        self._retiring: list[Source] = []
        self.authentication = Authentication(settings, clock, self._count, was_here or _never_here)
        self.authorization = Authorization(clock, on_change or _no_reviews)
        self._load(settings)

    def _load(self, settings: AccessSettings) -> list[Source]:
        """Apply these settings. Return the sources that are no longer used, for ``_retire``."""
        context = SourceContext(
            self._clock, self._count, settings, self._status_changed, self.authentication.passwords.verify, self._node
        )
        tables: dict[str, object] = {}
        sources: dict[str, Source] = {}
        # Any method of a source may raise: all are called before anything changes.
        for declared in sources_of(settings):
            tables[declared.name] = table = table_of(settings, declared)
            source = self._source(declared, table, context)
            if source is not None:
                sources[declared.name] = source
        parts = [parts_of(source) for source in sources.values()]
        if self._started:
            self._start([source for name, source in sources.items() if self.sources.get(name) is not source])
        unused = [old for name, old in self.sources.items() if sources.get(name) is not old]
        self.sources = sources
        self._tables = tables
        self.settings = settings
        self.authentication.reload(settings, parts)
        self.authorization.reload(settings, parts)
        return unused

    def _source(self, declared: AccessSource, table: object, context: SourceContext) -> Source | None:
        name = declared.name
        if name in self._made:
            return self._made[name]
        if declared.settings is not None and table is None:
            return None
        if table is not None and name in self.sources and self._tables.get(name) == table:
            return self.sources[name]
        try:
            made = declared.made(table, context)
        except ValueError:
            raise
        except Exception as error:  # a package of others may raise anything
            raise ValueError(
                f"access.{name}: create of the declaration failed: {type(error).__name__}: {error}"
            ) from error
        if made is None and table is None:
            return None
        # With another name the source would never be asked, and clients that it refuses would be accepted.
        if made is None:
            raise ValueError(f"access.{name}: create of the declaration returned no source")
        if not isinstance(made, Source):
            raise ValueError(f"access.{name}: create of the declaration returned {type(made).__name__}, not a Source")
        if made.name != name:
            raise ValueError(f"access.{name}: the source has another name than its declaration: {made.name}")
        return made

    def _start(self, sources: Sequence[Source]) -> None:
        """Start new sources: either all of them or none."""
        for index, source in enumerate(sources):
            try:
                source.start()
            except BaseException:
                self._retire(sources[: index + 1])
                raise

    def _retire(self, sources: Sequence[Source]) -> None:
        self._retiring = [each for each in self._retiring if each.busy]
        self._retiring += sources
        for source in sources:
            source.retire()

    def _status_changed(self, source: RemoteSource) -> None:
        """Raise the alarm of a source that is down, or end it."""
        if self._alarms is None or self.sources.get(source.name) is not source:
            return
        status = source.status
        if status.word != DOWN:
            self._alarms.deactivate(_alarm(source))
            return
        details = {"source": source.name, "setting": f"access.{source.name}", "fault": status.reason}
        if not self._alarms.activate(_alarm(source), f"access source {source.name} is down", details):
            self._alarms.amend(_alarm(source), details)

    def add(self, source: Authenticator | AclRuleSource | OutsideSource) -> None:
        """Add a source of the embedding program. It applies to new clients and to all decisions."""
        if isinstance(source, Authenticator):
            self.authentication.add(source)
        else:
            self.authorization.add(source)

    def start(self) -> None:
        """Start the background work of the sources on the running loop."""
        self._started = True
        for source in self.sources.values():
            source.start()

    def reload(self, settings: AccessSettings) -> None:
        """Apply new users and rules; after any exception, the old ones remain active. Verified credentials and cached
        decisions of all clients become invalid."""
        unused = self._load(settings)
        self.authorization.forget_decisions()
        self.authentication.passwords.verified.clear()
        self._retire(unused)
        if self._alarms is not None:
            for source in unused:
                self._alarms.deactivate(_alarm(source))

    def close(self) -> None:
        """Stop the hash threads; clients that wait for one, or arrive later, receive "Server unavailable"."""
        self.authentication.passwords.close()
        for source in self.sources.values():
            source.halt()

    async def stop(self) -> None:
        """Call ``close``, and close the connections to external services."""
        self.close()
        for source in (*self.sources.values(), *self._retiring):
            await source.stop()

    def ban_of(self, client: ClientInfo) -> Ban | None:
        """Return the ban of this client; it is checked before authentication."""
        return self._banned.find(client) if self._banned is not None else None


def _alarm(source: Source) -> str:
    return f"access/{source.name}/down"


def _not_counted(reason: str) -> None:
    """Without metrics, do nothing."""


def _never_here(client: ClientInfo) -> bool:
    return False


def _no_reviews() -> None:
    """Without sessions, do nothing."""
