"""Clients, connected or with a stored session, as records; and operations on them: disconnect, limit the rate."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from taipan.broker.access.acl_cache import AclCache
from taipan.broker.channel import closing
from taipan.broker.channel.channel import Channel
from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.server import Server
from taipan.broker.session.client_info import NO_TRAFFIC, Traffic, is_local_user, unmapped
from taipan.broker.session.session import Session
from taipan.broker.transport.connection import Connection
from taipan.broker.transport.rate_limits import TokenBucket

from .client_order import MAX_SORTED, ClientOrder, FirstClients
from .client_record import CONNECTED, DISCONNECTED, IDLE, ClientRecord, address_of, client_record
from .durable_answer import wait_until_stored
from .listing import EVERYTHING, FILTERED, Listing, PageQuery, found_in, offset_of, window
from .node_calls import Gathered, NodeCalls, NodeDoesNotAnswer
from .node_listing import PIECE, ListingPiece, Page, SortedListing, listing_of, piece_of
from .owners import Owners
from .refusal import NOT_ONLINE, Refusal, wrong

_MILLISECONDS: Final = 100_000_000_000
"""Times from this number on are in milliseconds, as in EMQX up to 4.3.0; smaller ones are in seconds, as in later
versions."""
_MAX_KEEP_ALIVE: Final = 65_535
_AMOUNT: Final = re.compile(r"([0-9]{1,15})\s*(kb|mb|gb|b)?", re.IGNORECASE)
_TIME: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)", re.IGNORECASE)
_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

Condition = Callable[[list[Session]], list[Session]]
"""Returns the sessions that match."""


class AclCacheEntry(msgspec.Struct):
    """Specification, ACL cache entry; ``updated_time`` is Unix milliseconds."""

    access: Literal["publish", "subscribe"]
    topic: str
    result: Literal["allow", "deny"]
    updated_time: int


When = Annotated[int, Meta(ge=0, le=253_402_300_799_999, extra={"unit": "Unix milliseconds"})]
"""Unix seconds or milliseconds."""


class ClientsQuery(PageQuery, kw_only=True):
    """Conditions of a search; all given conditions must hold.

    If a field is given exactly, its ``like`` condition is ignored. ``sort``: a field of the record by which the clients
    of all nodes are sorted, with ``-`` before it for the highest value first.
    """

    clientid: str | None = None
    username: str | None = None
    zone: str | None = None
    ip_address: str | None = None
    conn_state: Literal["connected", "idle", "disconnected"] | None = None
    clean_start: bool | None = None
    proto_name: Literal["MQTT", "CoAP", "LwM2M", "MQTT-SN"] | None = None
    proto_ver: int | None = None
    like_clientid: str | None = msgspec.field(default=None, name="_like_clientid")
    like_username: str | None = msgspec.field(default=None, name="_like_username")
    gte_created_at: When | None = msgspec.field(default=None, name="_gte_created_at")
    lte_created_at: When | None = msgspec.field(default=None, name="_lte_created_at")
    gte_connected_at: When | None = msgspec.field(default=None, name="_gte_connected_at")
    lte_connected_at: When | None = msgspec.field(default=None, name="_lte_connected_at")
    gte_mqueue_len: int | None = msgspec.field(default=None, name="_gte_mqueue_len")
    lte_mqueue_len: int | None = msgspec.field(default=None, name="_lte_mqueue_len")
    gte_mqueue_dropped: int | None = msgspec.field(default=None, name="_gte_mqueue_dropped")
    lte_mqueue_dropped: int | None = msgspec.field(default=None, name="_lte_mqueue_dropped")
    sort: str | None = msgspec.field(default=None, name="_sort")


class Clients:
    """All clients. Every session is a client, connected or offline."""

    def __init__(self, server: Server, calls: NodeCalls, owners: Owners) -> None:
        self._server = server
        self._calls = calls
        self._owners = owners
        self._order = ClientOrder(server)
        calls.serve(self.count, self.piece, self.lookup, self.clean_acl_caches)
        calls.serve(self.first_here, self.records_here)
        calls.serve(self.kick_here, self.acl_cache_here, self.clean_acl_cache_here)
        calls.serve(self.set_keep_alive_here, self.limit_rates_here, self.lift_rates_here)
        calls.serve(self.limit_routing_here, self.lift_routing_here)

    # ---------------------------------------------------------------- queries

    async def search(self, query: ClientsQuery, max_rows: int, node: str | None = None) -> Page[ClientRecord]:
        """Return one page of the matching clients; on each node in the order in which the sessions were created, unless
        the query has an order."""
        if query.sort:
            return await self._sorted(query, query.sort, query.rows(max_rows), node)
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows), node)

    async def _sorted(self, query: ClientsQuery, sort: str, limit: int, node: str | None) -> Page[ClientRecord]:
        """Return one page of the clients of all nodes in one order."""
        _, down = self._order.parse(sort)
        self._leaves(query)  # errors in the query are reported before any node is asked
        start = offset_of(query.page, limit)
        wanted = start + limit + 1
        if wanted > MAX_SORTED + 1:
            raise wrong("_page", f"a sorted listing ends at row {MAX_SORTED}: use filters")
        missing: list[str] = []
        if node is not None:
            first: FirstClients = await self._calls.on(node, self.first_here, query, wanted)
            found = [(node, first)]
        else:
            asked: Gathered[FirstClients] = await self._calls.everywhere(self.first_here, query, wanted)
            found, missing = asked
        rows = [(name, each) for name, first in found for each in first.rows]
        rows.sort(key=lambda row: row[1].clientid)
        rows.sort(key=lambda row: row[1].value, reverse=down)
        page = [(name, each.clientid) for name, each in rows[start : start + limit]]
        records, gone = await self._records(page)
        count = FILTERED if self._leaves(query) is not None else sum(first.count for _, first in found)
        missing = self._calls.may_lack(sorted({*missing, *gone}))
        return SortedListing(records, query.page, limit, count, len(rows) > start + limit, missing)

    async def _records(self, page: list[tuple[str, str]]) -> tuple[list[ClientRecord], list[str]]:
        """Return the records of clients that exist, given by node and client ID, in this order; and the nodes that did
        not answer."""
        by_place: dict[tuple[str, str], ClientRecord] = {}
        gone: list[str] = []
        for node in dict.fromkeys(name for name, _ in page):
            client_ids = [client_id for name, client_id in page if name == node]
            try:
                for start in range(0, len(client_ids), PIECE):
                    some: list[ClientRecord] = await self._calls.on(
                        node, self.records_here, client_ids[start : start + PIECE]
                    )
                    by_place |= {(node, record.clientid): record for record in some}
            except NodeDoesNotAnswer:
                gone.append(node)
        return [by_place[each] for each in page if each in by_place], gone

    async def first_here(self, query: ClientsQuery, wanted: int) -> FirstClients:
        """Return the first matching clients of this node in the order of the query."""
        field, down = self._order.parse(query.sort or "")
        leave, part = self._leaves(query), query.like_clientid
        if leave is not None and part is not None and query.clientid is None:
            rest = leave
            leave = lambda sessions: rest([each for each in sessions if part in each.client_id])  # noqa: E731
        return await self._order.first(field, down, min(wanted, MAX_SORTED + 1), leave)

    async def records_here(self, client_ids: list[str]) -> list[ClientRecord]:
        """Return the records of these clients, if they are at this node."""
        found: list[ClientRecord] = []
        work = CooperativeSlice()
        for client_id in client_ids:
            found += self.lookup(client_id)
            await work.checkpoint()
        return found

    async def by_username(
        self, username: str, page: int = 1, limit: int | None = None, node: str | None = None
    ) -> Page[ClientRecord]:
        """Return all clients with this username, on one page if ``limit`` is not given."""
        query = ClientsQuery(username=username)
        if limit is None:
            return await listing_of(self._calls, self, query, 1, EVERYTHING, node, meta=False)
        return await listing_of(self._calls, self, query, page, limit, node)

    async def find(self, client_id: str) -> tuple[list[ClientRecord], list[str]]:
        """Return the record of a client, if any node has it, and the nodes that did not answer and may have it."""
        found = await self._owners.find([client_id])
        node = found.nodes.get(client_id)
        if node is None:
            return [], self._calls.may_lack(found.missing)
        return await self._calls.on(node, self.lookup, client_id), []

    def count(self, query: ClientsQuery) -> int:
        """Count the clients of this node. Raises Refusal for an invalid condition."""
        return FILTERED if self._leaves(query) is not None else len(self._server.broker.sessions)

    async def piece(self, query: ClientsQuery, skip: int, limit: int) -> ListingPiece[ClientRecord]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: ClientsQuery, skip: int, limit: int) -> Listing[ClientRecord]:
        """Return the matching clients of this node without the first ``skip``."""
        sessions = self._server.broker.sessions
        leave = self._leaves(query)
        if leave is None:
            return window(sessions, 1, limit, self.record, skip)
        matching: Iterable[Session | None]
        if query.clientid is not None:
            only = sessions.get(query.clientid)
            matching = [] if only is None else leave([only])
        elif query.like_clientid is not None:
            # A session is only checked if its identifier matches.
            part = query.like_clientid
            matching = found_in(sessions.client_ids(), lambda ids: leave(self._named(ids, part)), skip + limit + 1)
        else:
            matching = found_in(sessions, leave, skip + limit + 1)
        return Listing(matching, 1, limit, self.record, FILTERED, skip)

    def _named(self, client_ids: list[str], part: str) -> list[Session]:
        """Return the sessions whose identifiers contain this part, if they still exist."""
        get = self._server.broker.sessions.get
        return [session for one in client_ids if part in one and (session := get(one)) is not None]

    def lookup(self, client_id: str) -> list[ClientRecord]:
        """Return the record of a client of this node, if it exists."""
        session = self._server.broker.sessions.get(client_id)
        return [] if session is None else [self.record(session)]

    def record(self, session: Session) -> ClientRecord:
        """The client record (specification), with the further fields of EMQX 4.4."""
        return client_record(
            self._server.broker.node, session, self._state(session), self._traffic(session), self._server.clock.skew
        )

    def _state(self, session: Session) -> str:
        if session.writer is not None:
            return CONNECTED
        return IDLE if session.client_id in self._server.context.channels else DISCONNECTED

    def _traffic(self, session: Session) -> Traffic:
        channel = self._server.context.channels.get(session.client_id)
        if channel is not None and isinstance(channel.connection, Connection):
            return channel.connection.traffic()
        client = session.client
        return client.traffic or NO_TRAFFIC

    def _leaves(self, query: ClientsQuery) -> Condition | None:
        """Return the check for all conditions except the part of the Client Identifier; ``None`` if the query has no
        condition at all."""
        conditions = list(self._conditions(query))
        if not conditions and query.like_clientid is None:
            return None

        def leave(sessions: list[Session]) -> list[Session]:
            for condition in conditions:
                sessions = condition(sessions)
            return sessions

        return leave

    def _conditions(self, query: ClientsQuery) -> Iterator[Condition]:
        """Return the conditions. Raises Refusal for an invalid address."""
        exact: tuple[tuple[object, Callable[[Session], object]], ...] = (
            (query.clientid, lambda session: session.client_id),
            (query.username, lambda session: session.client.username),
            (query.zone, lambda session: session.client.zone_name),
            (query.conn_state, self._state),
            (query.clean_start, lambda session: session.client.clean_start),
            (query.proto_name, lambda session: session.client.proto_name),
            (query.proto_ver, lambda session: session.client.proto_ver),
            (_address(query.ip_address), lambda session: address_of(session.client)),
        )
        for wanted, fact in exact:
            if wanted is not None:
                yield _equal(fact, wanted)
        if query.like_username is not None and query.username is None:
            yield _username_contains(query.like_username)
        bounds: tuple[tuple[float | None, float | None, Callable[[Session], float]], ...] = (
            (_seconds(query.gte_created_at), _seconds(query.lte_created_at), lambda session: session.created_at),
            (
                _seconds(query.gte_connected_at),
                _seconds(query.lte_connected_at),
                lambda session: float(session.client.connected_at),
            ),
            (query.gte_mqueue_len, query.lte_mqueue_len, lambda session: session.queued),
            (query.gte_mqueue_dropped, query.lte_mqueue_dropped, lambda session: session.mqueue_dropped),
        )
        for least, most, number in bounds:
            if least is not None:
                yield _at_least(number, least)
            if most is not None:
                yield _at_most(number, most)

    # ------------------------------------------------------------ actions, for any client

    async def kick(self, client_id: str) -> None:
        """Disconnect a client and delete its session, on any node; return when this is on disk."""
        await self._owners.ask(client_id, self.kick_here, client_id)

    async def set_keep_alive(self, client_id: str, interval: int) -> None:
        """Set another Keep Alive, in seconds, until the client disconnects; 0: none."""
        await self._owners.ask(client_id, self.set_keep_alive_here, client_id, interval)

    async def limit_rates(self, client_id: str, message_rate: str | None, byte_rate: str | None) -> None:
        """Limit the rate at which the node reads from this client (``"100,1s"``, ``"100KB,10s"``); an omitted limit
        remains unchanged."""
        await self._owners.ask(client_id, self.limit_rates_here, client_id, message_rate, byte_rate)

    async def lift_rates(self, client_id: str) -> None:
        """Restore the limits of the client's zone."""
        await self._owners.ask(client_id, self.lift_rates_here, client_id)

    async def limit_routing(self, client_id: str, rate: str | None) -> None:
        """Limit the routing of this client's messages: each message counts once, and once more for each recipient."""
        await self._owners.ask(client_id, self.limit_routing_here, client_id, rate)

    async def lift_routing(self, client_id: str) -> None:
        await self._owners.ask(client_id, self.lift_routing_here, client_id)

    async def acl_cache(self, client_id: str) -> list[AclCacheEntry]:
        """Return the cached access decisions of this client, oldest first; an offline client has none."""
        entries: list[AclCacheEntry] = await self._owners.ask(client_id, self.acl_cache_here, client_id)
        return entries

    async def clean_acl_cache(self, client_id: str) -> None:
        """Clear the cached access decisions of this client: its next PUBLISH and SUBSCRIBE are checked again."""
        await self._owners.ask(client_id, self.clean_acl_cache_here, client_id)

    async def clean_all_acl_caches(self) -> None:
        """Clear the cached access decisions of all clients on all nodes. Raises Refusal."""
        await self._calls.order_all(self.clean_acl_caches)

    # ----------------------------------------------- actions, for clients of this node

    async def kick_here(self, client_id: str) -> None:
        """Kick a client of this node. Its Will is published without delay."""
        broker = self._server.broker
        session = self._session(client_id)
        channel = self._server.context.channels.get(client_id)
        if channel is not None:
            closing.kick(channel)
        else:
            broker.life.end_session(session, "kicked", self._server.clock.now())
        await wait_until_stored(self._server.tables)

    def set_keep_alive_here(self, client_id: str, interval: int) -> None:
        if not 0 <= interval <= _MAX_KEEP_ALIVE:
            raise wrong("interval", f"expected 0 to {_MAX_KEEP_ALIVE} seconds")
        channel, connection = self._connected(client_id)
        channel.client.keep_alive = interval
        connection.expect_within(interval * channel.zone.keep_alive_multiplier)

    def limit_rates_here(self, client_id: str, message_rate: str | None, byte_rate: str | None) -> None:
        messages = None if message_rate is None else read_rate("conn_messages_in", message_rate)
        data = None if byte_rate is None else read_rate("conn_bytes_in", byte_rate, in_bytes=True)
        _, connection = self._connected(client_id)
        before = connection.limits
        connection.limit(messages or before[0], data or before[1])

    def lift_rates_here(self, client_id: str) -> None:
        channel, connection = self._connected(client_id)
        connection.limit(channel.zone.message_rate, channel.zone.byte_rate)

    def limit_routing_here(self, client_id: str, rate: str | None) -> None:
        quota = None if rate is None else read_rate("conn_messages_routing", rate)
        channel, _ = self._connected(client_id)
        if quota is not None:
            channel.limit_routing(TokenBucket(*quota))

    def lift_routing_here(self, client_id: str) -> None:
        channel, _ = self._connected(client_id)
        channel.limit_routing(None)

    # -------------------------------------------------------------- ACL cache

    def acl_cache_here(self, client_id: str) -> list[AclCacheEntry]:
        self._session(client_id)
        channel = self._server.context.channels.get(client_id)
        if channel is None:
            return []
        authorization = self._server.access.authorization
        client = channel.client
        now = self._server.clock.now()
        entries: dict[tuple[str, str], AclCacheEntry] = {}
        cache = client.acl_cache
        if isinstance(cache, AclCache) and cache.generation == authorization.generation:
            cached = msgspec.convert(list(cache.entries(now)), list[AclCacheEntry])
            entries = {(each.access, each.topic): each for each in cached}
        checked = client.zone.enable_acl and not client.is_superuser
        if checked and channel.admitted_generation == authorization.generation:
            # The decisions that the channel caches for publications.
            for topic, until in (channel.admitted or {}).items():
                if now < until and ("publish", topic) not in entries:
                    decided = int((until - authorization.settings.cache_ttl) * 1000)
                    entries["publish", topic] = AclCacheEntry("publish", topic, "allow", decided)
        return sorted(entries.values(), key=lambda each: each.updated_time)

    def clean_acl_cache_here(self, client_id: str) -> None:
        self._session(client_id)
        channel = self._server.context.channels.get(client_id)
        if channel is None:
            return
        channel.admitted = None
        cache = channel.client.acl_cache
        if isinstance(cache, AclCache):
            cache.clean()

    def clean_acl_caches(self) -> None:
        """Clear the cached access decisions of all clients of this node."""
        self._server.access.authorization.forget_decisions()

    # ---------------------------------------------------------------- identity

    def _session(self, client_id: str) -> Session:
        session = self._server.broker.sessions.get(client_id)
        if session is None:
            raise Refusal(NOT_ONLINE, f"no client {client_id}")
        return session

    def _connected(self, client_id: str) -> tuple[Channel, Connection]:
        channel = self._server.context.channels.get(client_id)
        if channel is not None and isinstance(channel.connection, Connection):
            return channel, channel.connection
        raise Refusal(NOT_ONLINE, f"client {client_id} is not connected")


def _equal(fact: Callable[[Session], object], wanted: object) -> Condition:
    return lambda sessions: [session for session in sessions if fact(session) == wanted]


def _username_contains(part: str) -> Condition:
    return lambda sessions: [session for session in sessions if part in (session.client.username or "")]


def _at_least(number: Callable[[Session], float], least: float) -> Condition:
    return lambda sessions: [session for session in sessions if number(session) >= least]


def _at_most(number: Callable[[Session], float], most: float) -> Condition:
    return lambda sessions: [session for session in sessions if number(session) <= most]


def _seconds(when: int | None) -> float | None:
    return when / 1000 if when is not None and when >= _MILLISECONDS else when


def _address(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(unmapped(ipaddress.ip_address(text)))
    except ValueError:
        if is_local_user(text):
            return text
        raise wrong("ip_address", f"not an IP address: {text}") from None


def read_rate(key: str, text: str, in_bytes: bool = False) -> tuple[float, float]:
    """Read a rate in EMQX's form, with amount and seconds above 0: ``"100KB,10s"`` is 100 KiB in any ten seconds.

    Raises a Refusal that names ``key``. An amount has a unit only if it is ``in_bytes``."""
    example = "100KB,10s" if in_bytes else "100,1s"
    amount_text, comma, time_text = text.partition(",")
    amount = _AMOUNT.fullmatch(amount_text.strip())
    time = _TIME.fullmatch(time_text.strip())
    if not comma or amount is None or time is None or (amount[2] and not in_bytes):
        raise wrong(key, f'expected an amount and a time like "{example}", not "{text[:100]}"')
    rate = int(amount[1]) * _BYTES[(amount[2] or "").lower()], int(time[1]) * _SECONDS[time[2].lower()]
    if not all(rate):
        raise wrong(key, f'amount and time must be above 0, not "{text[:100]}"')
    return rate
