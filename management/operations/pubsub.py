"""Publish, subscribe and unsubscribe on behalf of clients, whether they are on this node or not."""

import asyncio
import base64
import binascii
import secrets
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taipan.broker.channel.operator_subscriptions import OperatorSubscriptions
from taipan.broker.config import ZoneSettings
from taipan.broker.core.inspection import STOPPING
from taipan.broker.core.outcome import (
    FILTER_TOO_LONG,
    LINK_FULL,
    OPERATOR,
    QUEUE_FULL,
    RESERVED,
    RETAINED_ALONE,
    STORE_TROUBLE,
    Outcome,
)
from taipan.broker.core.subscription_plan import FilterPlan, mounted_filter, no_room, plan_filter, rewritten
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import NO_PROPERTIES, Properties, TopicFilter
from taipan.broker.mqtt.properties import MAX_USER_PROPERTIES
from taipan.broker.mqtt.reason_codes import TOPIC_NAME_INVALID
from taipan.broker.mqtt.topics import QUEUE_GROUP, QUEUE_PREFIX, parse_filter, valid_name
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session

from .backpressure_slice import BackpressureSlice
from .durable_answer import TROUBLE, wait_until_decided, wait_until_stored
from .node_calls import NodeCalls
from .owners import Owners, may_have, portions
from .refusal import BAD_TOPIC, MISSING, NOT_ONLINE, RPC_ERROR, WRONG, Refusal, wrong
from .topic_checks import bad_name, checked_name, checked_subscription

MAX_TOPICS: Final = 10_000
"""Maximum number of topics in one request."""

Qos = Annotated[int, Meta(ge=0, le=2)]
Uint32 = Annotated[int, Meta(ge=0, le=4_294_967_295)]
UserProperties = dict[str, str | int | float | bool]
Row = dict[str, Any]


class PublishProperties(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """MQTT 5.0 properties of a PUBLISH, as EMQX 4.4 names them."""

    payload_format_indicator: Annotated[int, Meta(ge=0, le=1)] | UnsetType = UNSET
    message_expiry_interval: Uint32 | UnsetType = UNSET
    response_topic: str | UnsetType = UNSET
    correlation_data: str | UnsetType = UNSET
    user_properties: UserProperties = {}
    content_type: str | UnsetType = UNSET


class PublishRequest(msgspec.Struct, kw_only=True):
    """What to publish. ``return``, whatever its value, requests the messages' ids."""

    client_id: str | UnsetType = msgspec.field(name="clientid")
    payload: str
    topic: str | UnsetType = UNSET
    topics: str | UnsetType = UNSET
    encoding: Literal["plain", "base64"] = "plain"
    qos: Qos = 0
    retain: bool = False
    properties: PublishProperties | UnsetType = UNSET
    user_properties: UserProperties = {}
    ids: Any = msgspec.field(name="return", default=UNSET)


class NamelessPublishRequest(PublishRequest, kw_only=True):
    """The same request in EMQX's form: without a client ID the node is the publisher, and a payload that is not a
    string is published as JSON text."""

    client_id: str | UnsetType | None = msgspec.field(name="clientid", default=UNSET)  # type: ignore[assignment]
    payload: str | int | float | bool | list[Any] | dict[str, Any]  # type: ignore[assignment]


class SubscribeRequest(msgspec.Struct, kw_only=True):
    """A client, and the filters to subscribe it to."""

    client_id: str = msgspec.field(name="clientid")
    topic: str | UnsetType = UNSET
    topics: str | UnsetType = UNSET
    qos: Qos = 0


class UnsubscribeRequest(msgspec.Struct, kw_only=True):
    """A client, and the Topic Filter to unsubscribe it from."""

    client_id: str = msgspec.field(name="clientid")
    topic: str


Item = TypeVar("Item", SubscribeRequest, UnsubscribeRequest)


class _Publication(NamedTuple):
    """A request that has been validated."""

    client_id: str | UnsetType
    topics: list[str]
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


class PubSub:
    """Acts for clients with an operator's rights: access rules and clients' limits on publishing do not apply."""

    def __init__(self, server: Server, calls: NodeCalls, owners: Owners) -> None:
        self._server = server
        self._calls = calls
        self._owners = owners
        self._subscriptions = OperatorSubscriptions(server.context)
        calls.serve(self.subscribe_here, self.unsubscribe_here, self.subscribed_here, self.unsubscribed_here)

    # ---------------------------------------------------------------- publish

    async def publish(self, request: PublishRequest) -> list[str]:
        """Publish to all topics of the request; return the ids of the messages. Raises Refusal."""
        mark = self._mark
        decisions: list[asyncio.Future[None]] = []
        ids = await self._publish(self._publication(request), BackpressureSlice(self._server), decisions)
        await self._stored(mark)
        await wait_until_decided(decisions)
        return ids

    async def publish_batch(self, requests: list[PublishRequest]) -> list[Row]:
        """Publish all requests if all are valid; return the result of each. Raises Refusal."""
        work = BackpressureSlice(self._server)
        publications: list[_Publication] = []
        for index, request in enumerate(requests):
            await work.checkpoint()
            publications.append(_of_item(index, self._publication, request))
        mark = self._mark
        decisions: list[asyncio.Future[None]] = []
        rows: list[Row] = []
        for publication, request in zip(publications, requests, strict=True):
            row: Row = {"topic": _asked(request)}
            try:
                ids = await self._publish(publication, work, decisions)
                row["code"] = 0
                if request.ids is not UNSET:
                    row["msgids"] = ids
            except Refusal as refusal:
                row |= _refused(refusal)
            rows.append(row)
        await self._stored(mark)
        await wait_until_decided(decisions)
        return rows

    def _publication(self, request: PublishRequest) -> _Publication:
        topics = _topics(request.topic, request.topics)
        for topic in topics:
            real = self._server.broker.destination(topic)
            if real is RESERVED:
                raise Refusal(BAD_TOPIC, f"reserved for the server: {_short(topic)!r}")
            if isinstance(real, Outcome) or not valid_name(real) or not valid_name(topic):
                raise bad_name("topic", topic)
        if request.encoding == "base64":
            try:
                payload = base64.b64decode(request.payload, validate=True)
            except (binascii.Error, ValueError, TypeError):  # TypeError: it is not a string
                raise wrong("payload", "not base64") from None
        else:
            text: object = request.payload  # in a NamelessPublishRequest, any value
            payload = text.encode() if isinstance(text, str) else msgspec.json.encode(text)
        properties = _properties(request)
        client_id = request.client_id if isinstance(request.client_id, str) else UNSET
        return _Publication(client_id, topics, payload, request.qos, request.retain, properties)

    @property
    def _mark(self) -> int:
        """Return a mark of how much has been written so far."""
        durability = self._server.broker.durability
        return 0 if durability is None else durability.commit.written

    async def _stored(self, mark: int) -> None:
        """Wait until everything that was caused since ``mark`` is on disk; return immediately if nothing has to be
        stored."""
        if self._mark != mark:
            await wait_until_stored(self._server.tables)

    async def _publish(
        self, publication: _Publication, work: BackpressureSlice, decisions: list[asyncio.Future[None]]
    ) -> list[str]:
        """``decisions``: the decisions that the answer has to wait for are added here."""
        publisher = None
        if publication.client_id is not UNSET:
            publisher = ClientInfo(self._server.settings.node.name, self._zone(), client_id=publication.client_id)
        ids: list[str] = []
        for topic in publication.topics:
            await work.checkpoint()
            message = Message(
                topic,
                publication.payload,
                publication.qos,
                publication.retain,
                publication.properties,
                publisher,
                self._server.clock.now(),
            )
            message.id = secrets.token_hex(16).upper()
            await self._publish_one(message)
            decision = self._server.broker.undecided
            if decision is not None and message.qos:
                decisions.append(decision)
            ids.append(message.id)
        return ids

    async def _publish_one(self, message: Message) -> None:
        """Publish one message. Raises Refusal if the broker does not accept it."""
        broker = self._server.broker
        inspection = broker.inspection
        if inspection is None:
            outcome = broker.accept(message, OPERATOR)
        else:
            outcome = await inspection.accept(message, OPERATOR)
        if not outcome.refused:
            return
        topic = _short(message.topic)
        if outcome is STORE_TROUBLE:
            raise Refusal(RPC_ERROR, TROUBLE)
        if outcome.setting.startswith("exhook.") or outcome is STOPPING:
            raise Refusal(RPC_ERROR, f"{topic}: {outcome.detail} (setting {outcome.setting})")
        if outcome is QUEUE_FULL:
            setting = "a matching session's queue is full, and its zone then refuses (setting queue_full)"
            raise Refusal(RPC_ERROR, f"{topic}: {setting}")
        if outcome is LINK_FULL:
            raise Refusal(
                RPC_ERROR, f"{topic}: {outcome.detail}, and too many messages wait for it (setting {outcome.setting})"
            )
        if outcome is RETAINED_ALONE:
            raise Refusal(RPC_ERROR, f"{topic}: {outcome.detail} (setting {outcome.setting})")
        if outcome.code == TOPIC_NAME_INVALID:
            raise bad_name("topic", topic)
        if self._server.delayed.handles(message.topic) and not outcome.setting.startswith("retained."):
            raise wrong("topic", f"the message cannot be delayed (setting {outcome.setting})")
        raise wrong("retain", f"{topic} cannot be retained (setting {outcome.setting})")

    def _zone(self) -> ZoneSettings:
        zones = self._server.settings.listener_zones
        return zones[0] if zones else ZoneSettings()

    # -------------------------------------------------- subscribe, unsubscribe

    async def subscribe(self, request: SubscribeRequest) -> None:
        """Subscribe a client, online or stored, to all filters of the request or to none. Raises Refusal."""
        _wanted(request)
        await self._owners.ask(request.client_id, self.subscribe_here, request)

    async def subscribe_here(self, request: SubscribeRequest) -> None:
        """Do the same as ``subscribe`` for a client of this node."""
        session = await self._subscribe(request, _wanted(request), BackpressureSlice(self._server))
        await self._answer(session)

    async def subscribe_batch(self, requests: list[SubscribeRequest]) -> list[Row]:
        """Subscribe for all requests if all are valid; return the result of each. Raises Refusal."""
        work = BackpressureSlice(self._server)
        for index, request in enumerate(requests):
            await work.checkpoint()
            _of_item(index, _wanted, request)
        return await self._at_owners(requests, self.subscribed_here, _subscribed_row)

    async def subscribed_here(self, requests: list[SubscribeRequest]) -> list[Row]:
        """Return the result of each request, for clients of this node."""
        work = BackpressureSlice(self._server)
        mark = self._mark
        rows: list[Row] = []
        subscribed: dict[str, Session] = {}
        for request in requests:
            row = _subscribed_row(request)
            try:
                subscribed[request.client_id] = await self._subscribe(request, _wanted(request), work)
                row["code"] = 0
            except Refusal as refusal:
                row |= _refused(refusal)
            rows.append(row)
        await self._stored(mark)
        for session in subscribed.values():
            await work.checkpoint()
            self._subscriptions.send_retained(session)
        return rows

    async def _subscribe(self, request: SubscribeRequest, filters: list[str], work: BackpressureSlice) -> Session:
        session = self._session(request.client_id)
        client = session.client
        plans = [plan_filter(TopicFilter(each, request.qos), client, self._server.broker.rewriting) for each in filters]
        for plan in plans:
            if plan.refusal is FILTER_TOO_LONG:
                raise Refusal(BAD_TOPIC, f"too long with the client's mount point: {_short(plan.entry.filter)!r}")
            if plan.refusal is not None:
                text, setting = _short(plan.entry.filter), plan.refusal.setting
                raise Refusal(BAD_TOPIC, f"the client's zone does not allow {text!r} (setting {setting})")
        async with self._subscriptions.claimed(session, plans):
            return await self._subscribe_planned(request.client_id, session, plans, work)

    async def _subscribe_planned(
        self, client_id: str, session: Session, plans: list[FilterPlan], work: BackpressureSlice
    ) -> Session:
        for plan in plans:
            self._check_exclusive(session, plan)
        new = {plan.filter for plan in plans} - session.subscriptions.keys()
        setting = no_room(session, new, self._server.broker.short_of_memory) if new else ""
        if setting:
            raise Refusal(WRONG, f"no room for more subscriptions of {client_id} (setting {setting})")
        for plan in plans:
            await work.checkpoint()
            if self._server.broker.sessions.get(client_id) is not session:
                raise _no_client(client_id)  # it has ended in the meantime
            self._check_exclusive(session, plan)
            subscription = plan.subscription(session, session.client, by_operator=True)
            self._server.broker.subscribe(session, subscription)
        return session

    def _check_exclusive(self, session: Session, plan: FilterPlan) -> None:
        taken = self._server.broker.exclusive.refusal(session, plan.mounted) if plan.exclusive else None
        if taken is not None:
            raise Refusal(WRONG, f"{_short(plan.entry.filter)!r}: {taken.detail} (setting {taken.setting})")

    async def _answer(self, session: Session) -> None:
        if session.durable:
            await wait_until_stored(self._server.tables)
        self._subscriptions.send_retained(session)

    async def unsubscribe(self, request: UnsubscribeRequest) -> None:
        """Unsubscribe a client, online or stored; a missing subscription is not an error. Raises Refusal."""
        checked_subscription("topic", request.topic)
        await self._owners.ask(request.client_id, self.unsubscribe_here, request)

    async def unsubscribe_here(self, request: UnsubscribeRequest) -> None:
        """Do the same as ``unsubscribe`` for a client of this node."""
        wanted = checked_subscription("topic", request.topic)
        session = self._session(request.client_id)
        self._unsubscribe(session, wanted)
        if session.durable:
            await wait_until_stored(self._server.tables)

    async def unsubscribe_batch(self, requests: list[UnsubscribeRequest]) -> list[Row]:
        """Unsubscribe for all requests if all are valid; return the result of each. Raises Refusal."""
        work = BackpressureSlice(self._server)
        for index, request in enumerate(requests):
            await work.checkpoint()
            _of_item(index, lambda each: checked_subscription("topic", each.topic), request)
        return await self._at_owners(requests, self.unsubscribed_here, _unsubscribed_row)

    async def unsubscribed_here(self, requests: list[UnsubscribeRequest]) -> list[Row]:
        """Return the result of each request, for clients of this node."""
        work = BackpressureSlice(self._server)
        mark = self._mark
        rows: list[Row] = []
        for request in requests:
            await work.checkpoint()
            row = _unsubscribed_row(request)
            try:
                self._unsubscribe(self._session(request.client_id), request.topic)
                row["code"] = 0
            except Refusal as refusal:
                row |= _refused(refusal)
            rows.append(row)
        await self._stored(mark)
        return rows

    async def _at_owners(
        self,
        requests: list[Item],
        carry_out: Callable[[list[Item]], Coroutine[Any, Any, list[Row]]],
        row_of: Callable[[Item], Row],
    ) -> list[Row]:
        """Execute each request on the node of its client; return the rows in the order of the requests."""
        if not self._calls.clustered:
            return await carry_out(requests)
        found = await self._owners.find(dict.fromkeys(request.client_id for request in requests))
        by_node: dict[str, list[int]] = {}
        rows: dict[int, Row] = {}
        for index, request in enumerate(requests):
            node = found.nodes.get(request.client_id)
            if node is None and found.missing:
                rows[index] = row_of(request) | _refused(may_have(found.missing[0], request.client_id))
            else:
                by_node.setdefault(node or self._calls.name, []).append(index)
        for node, indexes in by_node.items():
            for some in portions(indexes, lambda index: len(msgspec.msgpack.encode(requests[index]))):
                wanted = [requests[index] for index in some]
                try:
                    done: list[Row] = await self._calls.on(node, carry_out, wanted)
                except Refusal as refusal:
                    done = [row_of(each) | _refused(refusal) for each in wanted]
                rows.update(zip(some, done, strict=True))
        return [rows[index] for index in range(len(requests))]

    def _unsubscribe(self, session: Session, wanted: str) -> None:
        group, topic_filter = parse_filter(wanted)
        rewriting = self._server.broker.rewriting
        if rewriting is not None:
            wanted, topic_filter = rewritten(wanted, topic_filter, session.client, rewriting)
        full, mounted = mounted_filter(wanted, topic_filter, session.client.mountpoint)
        spelled = [full]
        if group == QUEUE_GROUP:  # listings show $queue/t as $share/$queue/t
            spelled = [QUEUE_PREFIX + mounted, f"$share/{QUEUE_GROUP}/{mounted}"]
        for full in spelled:
            self._server.broker.unsubscribe(session, full)

    def _session(self, client_id: str) -> Session:
        session = self._server.broker.sessions.get(client_id)
        if session is None:
            raise _no_client(client_id)
        durability = self._server.broker.durability
        if durability is not None and durability.commit.trouble is not None and session.durable:
            raise Refusal(RPC_ERROR, TROUBLE)
        return session


def _wanted(request: SubscribeRequest) -> list[str]:
    return [checked_subscription("topic", each) for each in _topics(request.topic, request.topics)]


def _subscribed_row(request: SubscribeRequest) -> Row:
    return {"clientid": request.client_id, "topic": _asked(request)}


def _unsubscribed_row(request: UnsubscribeRequest) -> Row:
    return {"clientid": request.client_id, "topic": request.topic}


def _refused(refusal: Refusal) -> Row:
    return {"code": refusal.code, "message": refusal.message}


def _no_client(client_id: str) -> Refusal:
    return Refusal(NOT_ONLINE, f"no client {_short(client_id)}, neither online nor with a stored session")


def _of_item(index: int, read: Any, request: Any) -> Any:
    """Return ``read(request)``; a refusal names the item."""
    try:
        return read(request)
    except Refusal as refusal:
        raise Refusal(refusal.code, f"[{index}]: {refusal.message}") from None


def _asked(request: PublishRequest | SubscribeRequest) -> str:
    text = request.topics if request.topic is UNSET else request.topic
    return "" if isinstance(text, UnsetType) else text


def _topics(topic: str | UnsetType, topics: str | UnsetType) -> list[str]:
    """Return the topics: ``topic`` overrides ``topics``, and both may contain several, separated by commas."""
    text = topics if isinstance(topic, UnsetType) else topic
    if isinstance(text, UnsetType):
        raise Refusal(MISSING, "topic or topics is missing")
    if text.count(",") >= MAX_TOPICS:
        raise wrong("topics", f"more than {MAX_TOPICS} topics in one request")
    return text.split(",")


def _properties(request: PublishRequest) -> Properties:
    given = request.properties
    users = dict(request.user_properties)
    found: Properties = {}
    if not isinstance(given, UnsetType):
        users |= given.user_properties
        if given.payload_format_indicator is not UNSET:
            found[c.PAYLOAD_FORMAT_INDICATOR] = given.payload_format_indicator
        if given.message_expiry_interval is not UNSET:
            found[c.MESSAGE_EXPIRY_INTERVAL] = given.message_expiry_interval
        if not isinstance(given.content_type, UnsetType):
            found[c.CONTENT_TYPE] = _string("properties.content_type", given.content_type)
        if not isinstance(given.response_topic, UnsetType):
            found[c.RESPONSE_TOPIC] = checked_name("properties.response_topic", given.response_topic)
        if not isinstance(given.correlation_data, UnsetType):
            found[c.CORRELATION_DATA] = _string("properties.correlation_data", given.correlation_data, "").encode()
    if len(users) > MAX_USER_PROPERTIES:
        raise wrong("user_properties", f"more than {MAX_USER_PROPERTIES}")
    if users:
        found[c.USER_PROPERTY] = [
            (_string("user_properties", name), _string("user_properties", _text(value)))
            for name, value in users.items()
        ]
    return found or NO_PROPERTIES


def _text(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _string(key: str, text: str, unwanted: str = "\0") -> str:
    """Check that a text can be an MQTT string; for binary data, U+0000 is not ``unwanted``."""
    if (unwanted and unwanted in text) or len(text.encode()) > c.MAX_STRING:
        raise wrong(key, "longer than 65535 bytes or with U+0000")
    return text


def _short(text: str) -> str:
    return text if len(text) <= 256 else text[:256] + "..."
