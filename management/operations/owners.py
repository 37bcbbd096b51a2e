"""Owners: which node has a client, and calls of operations there."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from taipan.broker.server import Server

from .node_calls import NodeCalls, NodeDoesNotAnswer

ARGUMENT_SIZE: Final = 131_072
"""Maximum bytes of text in one question about many clients."""


class Found(NamedTuple):
    """The nodes of the clients. ``missing``: nodes that did not answer and may have the other clients."""

    nodes: dict[str, str]
    missing: list[str]


class Owners:
    """Finds the node of a client. A client with a connection or a session is on one node."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.held)

    def held(self, client_ids: list[str]) -> list[str]:
        """Return the clients from this list that are on this node."""
        sessions = self._server.broker.sessions
        return [each for each in client_ids if sessions.get(each) is not None]

    async def find(self, client_ids: Iterable[str]) -> Found:
        """Return the nodes of these clients; clients that no node has are left out."""
        sessions, cluster = self._server.broker.sessions, self._server.cluster
        nodes: dict[str, str] = {}
        unknown: list[str] = []
        for each in client_ids:
            node = self._calls.name if sessions.get(each) is not None else cluster.node_of(each)
            if node is not None:
                nodes[each] = node
            else:
                unknown.append(each)
        missing: list[str] = []
        if self._calls.clustered:
            for some in portions(unknown, len):
                answers = await self._calls.everywhere(self.held, some)
                missing = missing or answers.missing
                for node, held in answers.found:
                    nodes.update(dict.fromkeys(held, node))
        return Found(nodes, missing)

    async def ask(self, client_id: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run an operation on the node that has this client; if no node has it, on this one.

        Raises Refusal, also NodeDoesNotAnswer if the client may be on a node that does not answer.
        """
        found = await self.find([client_id])
        node = found.nodes.get(client_id)
        if node is None and found.missing:
            raise may_have(found.missing[0], client_id)
        return await self._calls.on(node or self._calls.name, function, *args)


def may_have(node: str, client_id: str) -> NodeDoesNotAnswer:
    """Return why nothing can be done about a client that no answering node has."""
    return NodeDoesNotAnswer(node, f"does not answer, it may have client {client_id[:256]}")


def portions(items: list[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Yield the items in lists that fit into one question."""
    some: list[Any] = []
    room = ARGUMENT_SIZE
    for each in items:
        if some and room < size(each):
            yield some
            some, room = [], ARGUMENT_SIZE
        some.append(each)
        room -= size(each) + 8
    if some:
        yield some
