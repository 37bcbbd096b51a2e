"""Prospects: what a node with ``cluster.replicas`` would find in the cluster, without joining it.

``taipan doctor`` and ``taipan check --connect`` show it. Nothing is changed: the write that tests the bucket expects a
revision that does not exist, so that NATS refuses it after all other checks."""

import socket
from typing import Final, Literal

import msgspec

from ...config import ClusterSettings
from ...observability.metrics import Reasons
from ..nats.api import NO_STREAM, WRONG_SEQUENCE, ApiError, PublishAck, ask, decode_ack, decode_stored
from ..nats.connection import (
    ConnectionLost,
    NatsConnection,
    NatsServer,
    NatsUnreachable,
    check_credentials,
    credential_of,
    tls_context,
)
from ..nats.interface import ATTEMPT, REPLICAS, NatsRefused, NoAnswer, NoResponders, Unavailable
from ..wire import MemberRecord, Refusals, Wire, node_key
from .choice import CopyPlace, choose

_NO_REVISION: Final = 1 << 62


class Prospect(msgspec.Struct, frozen=True):
    """``advice``: empty if there is nothing to do."""

    level: Literal["ok", "warning", "error"]
    found: str
    advice: str = ""


class _StreamSubjects(msgspec.Struct, frozen=True):
    subjects: dict[str, int] = {}


class _StreamInfo(msgspec.Struct, frozen=True):
    state: _StreamSubjects = _StreamSubjects()
    error: ApiError | None = None


async def prospects(settings: ClusterSettings, node: str) -> list[Prospect]:
    """Return the results of the checks.

    :raises NatsRefused: no NATS server can be used."""
    connection = await _connection(settings)
    try:
        return [await _bucket(connection, settings), *_places(await _members(connection, settings), settings, node)]
    except (NoAnswer, NoResponders, ConnectionLost, Unavailable) as error:
        raise NatsRefused(f"the buckets cannot be read: {error}", "cluster.servers") from None
    finally:
        await connection.close()


async def _connection(settings: ClusterSettings) -> NatsConnection:
    check_credentials(settings)
    tls = tls_context(settings)
    unreachable = []
    for url in settings.servers:
        try:
            return await NatsConnection(settings, NatsServer(url)).open(tls)
        except NatsUnreachable as error:
            unreachable.append(str(error))
    raise NatsRefused("; ".join(unreachable), "cluster.servers")


def _stream(settings: ClusterSettings, bucket: str) -> str:
    return f"KV_taipan-{settings.name}-{bucket}"


async def _bucket(connection: NatsConnection, settings: ClusterSettings) -> Prospect:
    subject = f"$KV.taipan-{settings.name}-{REPLICAS}.prospects"
    named = f"bucket {REPLICAS} of the cluster {settings.name}"
    info = msgspec.json.decode(
        await ask(connection, f"STREAM.INFO.{_stream(settings, REPLICAS)}", None), type=_StreamInfo
    )
    if info.error is not None:
        if info.error.err_code == NO_STREAM:
            return Prospect("ok", f"{named} does not exist yet; the first node with cluster.replicas creates it")
        return Prospect("error", f"{named}: {info.error.description}", f"see {credential_of(settings)}")
    headers = {"Nats-Expected-Last-Sequence": str(_NO_REVISION)}
    try:
        answer = decode_ack(await connection.request(subject, b"", ATTEMPT, headers))
    except (NoAnswer, NoResponders) as error:
        answer = PublishAck(error=ApiError(description=connection.error or str(error)))
    if answer.error is not None and answer.error.err_code in WRONG_SEQUENCE:
        return Prospect("ok", f"{named} is writable")
    why = "it accepted a wrong revision" if answer.error is None else answer.error.description
    who = credential_of(settings)
    advice = f"let the user of {who} publish to $KV.taipan-{settings.name}-{REPLICAS}.>"
    return Prospect("error", f"{named} is not writable: {why}", advice)


async def _members(connection: NatsConnection, settings: ClusterSettings) -> list[MemberRecord]:
    """Return the records of all members, running or not."""
    stream, prefix = _stream(settings, "members"), f"$KV.taipan-{settings.name}-members."
    asked = {"subjects_filter": f"{prefix}>"}
    info = msgspec.json.decode(await ask(connection, f"STREAM.INFO.{stream}", asked), type=_StreamInfo)
    reader = Wire(settings.name, "", Refusals(Reasons(), lambda: 0.0)).reader(MemberRecord)
    found = []
    for subject in sorted(info.state.subjects):
        stored = decode_stored(await ask(connection, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})).message
        value = None if stored is None or b"KV-Operation" in stored.hdrs else reader.value(stored.data)
        if (
            value is not None
            and value[1].uid
            and not value[1].forced_out
            and subject == prefix + node_key(value[1].node)
        ):
            found.append(value[1])
    return found


def _places(members: list[MemberRecord], settings: ClusterSettings, node: str) -> list[Prospect]:
    """Return whether there are enough other nodes, and where the copies would be kept."""
    others = {
        each.node: CopyPlace(each.rack, each.host) for each in members if each.node != node and each.rack is not None
    }
    wanted = settings.replicas
    if len(others) < wanted:
        found = f"{len(others)} other nodes keep copies, cluster.replicas is {wanted}"
        advice = "start more nodes with cluster.replicas, or the alarm replica_missing stays"
        if settings.replicas_min > len(others):
            advice = (
                "start more nodes with cluster.replicas: until then, cluster.replicas_min lets nothing be acknowledged"
            )
        return [Prospect("warning", found, advice)]
    own = CopyPlace(settings.rack, socket.gethostname())
    chosen = choose(node, own, others, wanted)
    found = f"the copies would be on {', '.join(chosen)}"
    places = [own, *(others[name] for name in chosen)]
    if len({each.host for each in places}) < len(places):
        return [
            Prospect(
                "warning", f"{found}: two of {wanted + 1} nodes are on one machine", "start a node on another machine"
            )
        ]
    racks = [each.rack for each in places]
    if not all(racks):
        missing = [name for name, rack in zip([node, *chosen], racks, strict=True) if not rack]
        advice = "set cluster.rack on each node, for example to the name of its room"
        return [Prospect("warning", f"{found}: no cluster.rack on {', '.join(missing)}", advice)]
    if len(set(racks)) < len(racks):
        advice = "start a node with another cluster.rack: what takes away a rack takes the copy along"
        twice = next(rack for rack in racks if racks.count(rack) > 1)
        return [Prospect("warning", f"{found}: two of {wanted + 1} nodes have the cluster.rack {twice}", advice)]
    return [Prospect("ok", f"{found}, in other racks than {settings.rack}")]
