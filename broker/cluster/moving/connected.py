"""Connected: the nodes inform each other which clients have connected, so that only one client with a client ID stays
connected.

Each CONNECT gets a stamp that is higher than all stamps that this node has seen. If two nodes have a client with the
same client ID, the client with the higher stamp stays connected. If the stamps are equal, the client on the node with
the higher key stays. The result does not depend on the order in which the nodes receive the messages. The messages are
numbered; a node that misses a number asks the sender for its whole list.
"""

import asyncio
import logging
from itertools import islice
from typing import Final

import msgspec

from ...channel.closing import disconnect
from ...channel.identity import SESSION_OWNER, owner_before
from ...channel.session_setup import take_over
from ...core.cluster import CallFailed, NodeUnreachable
from ...mqtt import reason_codes
from ...session.client_info import ClientInfo
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..tasks import Tasks
from ..wire import Here, HereBatch, SendAway, node_key

logger = logging.getLogger(__name__)

LIST: Final = "connected.list"
SEND_AWAY: Final = "connected.send_away"
_PER_MESSAGE: Final = 500
_EVERY: Final = 5.0
"""Seconds after which the number of the last message is sent again."""
_SLICE: Final = 1000


class Connected:
    """Keeps one client for each client ID in the cluster. ``Claims`` calls ``announce`` when a client has connected
    here; it disconnects a client here that has connected to another node since."""

    def __init__(self, context: ClusterContext, members: Members, calls: Calls) -> None:
        self._context = context
        self._nats = context.nats
        self._members = members
        self._calls = calls
        self._reader = context.wire.reader(HereBatch)
        self._subject = context.subject("here")
        self._number = 0
        # The highest stamp so far. It starts with the wall clock, so that a node that has just started, and has heard
        # no other node, does not assign lower stamps than before; nothing else depends on it.
        self._stamp = round(context.clock.wall() * 1000)
        self._to_tell: list[Here] = []
        # Node -> the number of its last message, and its incarnation.
        self._heard: dict[str, tuple[int, int]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        calls.serve(LIST, self._list)
        calls.serve(SEND_AWAY, self._send_away)

    def start(self) -> None:
        self._nats.subscribe(self._subject, self._told)
        self._nats.on_connected.append(self._tell_last)
        self._members.on_change.append(self._changed)
        self._tick()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY, self._tick)
        self._tell_last()

    # --------------------------------------------------------------------- clients of this node

    def announce(self, client: ClientInfo, clean_start: bool) -> None:
        """Announce a client whose CONNECT was accepted."""
        self._stamp += 1
        client.stamp = self._stamp
        self._tell(self._here(client, clean_start))

    def _here(self, client: ClientInfo, clean_start: bool) -> Here:
        return Here(client.client_id, client.stamp, client.owner, clean_start)

    def _tell(self, here: Here) -> None:
        if not self._to_tell:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_tell.append(here)

    def _flush(self) -> None:
        clients, self._to_tell = self._to_tell, []
        for start in range(0, len(clients), _PER_MESSAGE):
            self._number += 1
            self._publish(False, clients[start : start + _PER_MESSAGE])

    def _publish(self, last: bool, clients: list[Here]) -> None:
        batch = HereBatch(self._number, last, self._stamp, clients)
        self._nats.publish(self._subject, self._context.wire.write(batch))

    def _tell_last(self) -> None:
        self._publish(True, [])

    async def _list(self, node: str, argument: bytes) -> bytes:
        """Answer with all clients that are connected here, and the number of the last message about them."""
        number = self._number
        clients = []
        for looked, (client_id, channel) in enumerate(list(self._context.channels.channels.items()), 1):
            if channel.client.stamp and self._context.channels.channels.get(client_id) is channel:
                # Its new start was announced at that time.
                clients.append(self._here(channel.client, False))
            if looked % _SLICE == 0:
                await asyncio.sleep(0)
        return msgspec.msgpack.encode(HereBatch(number, True, self._stamp, clients))

    # ------------------------------------------------------------------- clients of other nodes

    def _told(self, data: bytes, _: str) -> None:
        sender = self._context.wire.header(data)
        if sender is None or sender.node == self._context.node:
            return
        found = self._reader.message(data)
        if found is None:
            return
        header, batch = found
        node = header.node
        self._stamp = max(self._stamp, batch.stamp)
        incarnation, heard = self._heard.get(node, (header.incarnation, -1))
        if incarnation != header.incarnation:
            heard = -1
        complete = heard >= 0 and batch.number - (0 if batch.last else 1) <= heard
        for here in batch.clients:
            self._look_at(node, here)
        if complete or (heard < 0 and batch.number <= (0 if batch.last else 1)):
            self._heard[node] = (header.incarnation, max(heard, batch.number))
        elif node not in self._asking or self._asking[node].done():
            self._asking[node] = self._tasks.run(self._ask(node, header.incarnation))

    def _changed(self, peer: Peer, before: str) -> None:
        if peer.running and before != peer.status:
            self._tell_last()

    async def _ask(self, node: str, incarnation: int) -> None:
        """Ask a node for its list, because one of its messages was missed."""
        try:
            batch = self._calls.decoded(node, await self._calls.call(node, LIST, b""), HereBatch)
        except (NodeUnreachable, CallFailed) as error:
            logger.info("connected_list_missed node=%s error=%s", node, error)
            return
        self._stamp = max(self._stamp, batch.stamp)
        clients = iter(batch.clients)
        while some := list(islice(clients, _SLICE)):
            for here in some:
                self._look_at(node, here)
            await asyncio.sleep(0)
        heard = self._heard.get(node)
        self._heard[node] = (incarnation, batch.number if heard is None else max(batch.number, heard[1]))

    def _look_at(self, node: str, here: Here) -> None:
        """Decide between a client here and one with the same client ID that has connected to another node."""
        channels = self._context.channels
        channel = channels.channels.get(here.client_id)
        if channel is None:
            return
        client = channel.client
        ours = (client.stamp, node_key(self._context.node))
        if (here.stamp, node_key(node)) < ours:
            self._tell(self._here(client, False))  # that node may not know of this client
            return
        session = channel.session
        if session is not None and channels.access.settings.session_owner != "any":
            owner = owner_before(session, here.owner)
            if owner:
                # A client that is not the owner of the session disturbs no session: the other node disconnects its
                # client.
                self._tasks.run(self._object(node, here, owner))
                return
        take_over(channel, here.clean_start, node)

    async def _object(self, node: str, here: Here, owner: str) -> None:
        question = msgspec.msgpack.encode(SendAway(here.client_id, here.stamp, owner))
        try:
            await self._calls.call(node, SEND_AWAY, question)
        except (NodeUnreachable, CallFailed) as error:
            logger.warning("session_of_another_stays client_id=%s node=%s error=%s", here.client_id, node, error)

    async def _send_away(self, node: str, argument: bytes) -> bytes:
        """Disconnect a client that does not own the session that another node has."""
        ask = self._calls.decoded(node, argument, SendAway)
        channel = self._context.channels.channels.get(ask.client_id)
        if channel is not None and channel.client.stamp == ask.stamp:
            detail = f"the session belongs to {ask.owner}"
            disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "session_of_another", SESSION_OWNER, tell=False)
        return b""
