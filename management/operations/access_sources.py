"""Access sources: which ones a node asks, in order, and whether the remote ones answer."""

import msgspec

from taipan.broker.access.remote import RemoteSource
from taipan.broker.access.remote_status import Breaker, Word
from taipan.broker.server import Server

from .node_calls import NodeCalls


class RemoteRecord(msgspec.Struct):
    """Status of a remote source. ``reason``: why it is down. ``since``: Unix milliseconds. ``latency``: milliseconds
    that answers take, as a moving average; null: no question was answered. ``breaker``: while it is not closed,
    questions fail at once. ``allowed``, ``denied``, ``ignored`` and ``failed``: the results of questions;
    ``under_way``: those without one yet."""

    status: Word
    reason: str
    since: int
    latency: float | None
    breaker: Breaker
    breaker_opened: int
    allowed: int
    denied: int
    ignored: int
    failed: int
    under_way: int


class AccessSourceRecord(msgspec.Struct):
    """``authenticates`` and ``authorizes``: the position of the source in each order of questions, from 1; null: the
    source is not asked. ``remote``: null if the node answers without another server."""

    source: str
    authenticates: int | None
    authorizes: int | None
    remote: RemoteRecord | None


class AccessSources:
    """The sources of the configuration; those that a program adds have no status."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        calls.serve(self.records)

    def records(self) -> list[AccessSourceRecord]:
        """Return the sources in the order in which they authenticate, then the sources that only authorize."""
        access = self._server.access
        authenticating = [each.name for each in access.authentication.chain if each.name in access.sources]
        authorizing = [each.name for each in access.authorization.sources if each.name in access.sources]
        names = dict.fromkeys([*authenticating, *authorizing])
        return [
            AccessSourceRecord(
                name, _place(name, authenticating), _place(name, authorizing), _remote(access.sources[name])
            )
            for name in names
        ]


def _place(name: str, names: list[str]) -> int | None:
    return names.index(name) + 1 if name in names else None


def _remote(source: object) -> RemoteRecord | None:
    if not isinstance(source, RemoteSource):
        return None
    status = source.status
    decided = status.decisions
    latency = None if status.latency is None else round(1000 * status.latency, 3)
    return RemoteRecord(
        status.word,
        status.reason,
        round(1000 * status.since),
        latency,
        status.breaker,
        status.breaker_opened,
        decided["allow"],
        decided["deny"],
        decided["ignore"],
        status.failed,
        source.under_way,
    )
