"""The client record: the data of one client, with the field names of the specification and of EMQX 4.4."""

from functools import lru_cache
from sys import getsizeof
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from taipan.broker.session.client_info import ClientInfo, Traffic, ip_address_of
from taipan.broker.session.limits import MAX_INFLIGHT
from taipan.broker.session.protocols import EXPIRED, NO_LOCAL, QUEUE_FULL, TOO_LARGE
from taipan.broker.session.session import Session

from .times import local_text

CONNECTED: Final = "connected"
IDLE: Final = "idle"
DISCONNECTED: Final = "disconnected"

_NO_NAME: Final = "undefined"
"""EMQX's value for a missing username."""
_MAPPED: Final = "::ffff:"
# Many sessions are created within the same second.
_text: Final = lru_cache(4096)(local_text)
_NO_DROPS: Final[dict[str, int]] = {}


class ClientRecord(msgspec.Struct, kw_only=True):
    """Specification, Client record, with the further fields of EMQX 4.4."""

    node: str
    clientid: str
    username: str
    proto_name: str
    proto_ver: int
    ip_address: str
    port: int
    is_bridge: bool
    connected_at: str
    connected: bool
    zone: str
    keepalive: int
    clean_start: bool
    expiry_interval: int
    created_at: str
    subscriptions_cnt: int
    max_subscriptions: int
    inflight: int
    max_inflight: int
    mqueue_len: int
    max_mqueue: int
    mqueue_dropped: int
    awaiting_rel: int
    max_awaiting_rel: int
    recv_oct: int
    recv_cnt: int
    recv_pkt: int
    recv_msg: int
    recv_msg_qos0: int = msgspec.field(name="recv_msg.qos0")
    recv_msg_qos1: int = msgspec.field(name="recv_msg.qos1")
    recv_msg_qos2: int = msgspec.field(name="recv_msg.qos2")
    recv_msg_dropped: int = msgspec.field(name="recv_msg.dropped")
    send_oct: int
    send_cnt: int
    send_pkt: int
    send_msg: int
    send_msg_qos0: int = msgspec.field(name="send_msg.qos0")
    send_msg_qos1: int = msgspec.field(name="send_msg.qos1")
    send_msg_qos2: int = msgspec.field(name="send_msg.qos2")
    send_msg_dropped: int = msgspec.field(name="send_msg.dropped")
    send_msg_dropped_expired: int = msgspec.field(name="send_msg.dropped.expired")
    send_msg_dropped_queue_full: int = msgspec.field(name="send_msg.dropped.queue_full")
    send_msg_dropped_too_large: int = msgspec.field(name="send_msg.dropped.too_large")
    mailbox_len: int
    heap_size: int
    reductions: int
    disconnected_at: str | UnsetType = UNSET
    mountpoint: str | UnsetType = UNSET


def client_record(node: str, session: Session, state: str, traffic: Traffic, skew: float = 0.0) -> ClientRecord:
    """``state`` is CONNECTED, DISCONNECTED, or IDLE: its CONNECT is accepted but not acknowledged yet. ``skew``: the
    difference between dates and times (``taipan.broker.loop.clock``)."""
    client = session.client
    limits = session.limits
    received = traffic.received0 + traffic.received1 + traffic.received2
    sent = traffic.sent0 + traffic.sent1 + traffic.sent2
    drops = client.dropped or _NO_DROPS
    return ClientRecord(
        node=node,
        clientid=session.client_id,
        username=_NO_NAME if client.username is None else client.username,
        proto_name=client.proto_name,
        proto_ver=client.proto_ver,
        ip_address=address_of(client),
        port=client.peer_port,
        is_bridge=client.is_bridge,
        connected_at=_text(int(client.connected_at + skew)),
        connected=state == CONNECTED,
        zone=client.zone_name,
        keepalive=client.keep_alive,
        clean_start=client.clean_start,
        expiry_interval=session.expiry_interval,
        created_at=_text(int(session.created_at + skew)),
        subscriptions_cnt=len(session.subscriptions),
        max_subscriptions=client.zone.max_subscriptions,
        inflight=len(session.inflight),
        # 0 if there is no limit.
        max_inflight=0 if session.window == MAX_INFLIGHT and not session.limits.max_inflight else session.window,
        mqueue_len=0 if session.queue is None else len(session.queue),
        max_mqueue=limits.max_queued_messages,
        mqueue_dropped=session.mqueue_dropped,
        awaiting_rel=0 if session.awaiting_rel is None else len(session.awaiting_rel),
        max_awaiting_rel=limits.max_awaiting_rel,
        recv_oct=traffic.received_bytes,
        recv_cnt=traffic.received_reads,
        recv_pkt=traffic.received_packets,
        recv_msg=received,
        recv_msg_qos0=traffic.received0,
        recv_msg_qos1=traffic.received1,
        recv_msg_qos2=traffic.received2,
        recv_msg_dropped=traffic.refused,
        send_oct=traffic.sent_bytes,
        send_cnt=traffic.sent_writes,
        send_pkt=traffic.sent_packets,
        send_msg=sent,
        send_msg_qos0=traffic.sent0,
        send_msg_qos1=traffic.sent1,
        send_msg_qos2=traffic.sent2,
        send_msg_dropped=sum(drops.values()) - drops.get(NO_LOCAL, 0),
        send_msg_dropped_expired=drops.get(EXPIRED, 0),
        send_msg_dropped_queue_full=drops.get(QUEUE_FULL, 0),
        send_msg_dropped_too_large=drops.get(TOO_LARGE, 0),
        mailbox_len=traffic.waiting,
        heap_size=_memory(session, client) + traffic.held,
        reductions=traffic.received_packets + traffic.sent_packets,
        disconnected_at=_text(int(session.disconnected_at + skew)) if state == DISCONNECTED else UNSET,
        mountpoint=client.mountpoint or UNSET,
    )


def address_of(client: ClientInfo) -> str:
    """Return the client's address. An IPv4 address of an IPv6 socket is returned in IPv4 form."""
    host = client.peer_host
    return str(ip_address_of(host)) if host.startswith(_MAPPED) else host


def _memory(session: Session, client: ClientInfo) -> int:
    """Approximate memory of the session in bytes, including the messages that it holds."""
    inflight = session.inflight
    size = getsizeof(session) + getsizeof(client) + getsizeof(session.subscriptions) + getsizeof(inflight)
    if inflight:
        size += sum([delivery.size for delivery in inflight.values() if delivery is not None])
    if session.queue is not None:
        size += session.queue.size
    return size
