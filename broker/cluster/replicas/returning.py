"""Returning: the start of a node that another node has taken over in the meantime, or whose data is now only in another
node's copy. The data on its disk is outdated: the node moves it to another directory, and starts with an empty one. It
waits until the node that runs in its place has left, since two nodes with one name never run at the same time. This
also applies if ``cluster.replicas`` is now 0, because the earlier setting decides."""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from ...store.set_aside import set_aside
from ...store.store import Store
from ..context import ClusterContext
from ..members.identity import SELF, TABLE, Identity
from ..nats.interface import REPLICAS as BUCKET
from ..nats.interface import NoAnswer, Unavailable, Unknown, WrongRevision
from ..wire import node_key
from .records import ReplicaRecord, ReplicaRecords

logger = logging.getLogger(__name__)

COPIES_LOST: Final = "copies-lost"
"""The file in the data directory by which an operator ends the wait for copies that are lost."""
_LOOK_EVERY: Final = 0.5
_TELL_EVERY: Final = 60.0


async def read_own_record(context: ClusterContext) -> ReplicaRecord | None:
    """Return this node's record. Raises Unavailable and NoAnswer."""
    return ReplicaRecords(context).decode(await context.nats.read(BUCKET, node_key(context.node)))


def identity_in(store: Store) -> Identity | None:
    """Return the identity of the data that was read, or ``None`` if the store is empty."""
    row = store.row(TABLE, SELF)
    return None if row is None else msgspec.msgpack.decode(row, type=Identity)


def may_have_record(context: ClusterContext, identity: Identity | None) -> bool:
    """Return whether there may be a record under this node's name, for its data or for data that it has lost."""
    return bool(context.settings.replicas) or identity is None or identity.copied


async def settle(context: ClusterContext, store: Store, identity: Identity | None, directory: Path) -> None:
    """Set the store of a replaced node aside, and wait until its name is free. Called between ``read`` and ``open`` of
    the store in ``directory``.

    Without NATS, the node starts with the data that it has, and acknowledges nothing until it knows its record. A node
    without data waits if it should have copies: acknowledged data under its name may be in copies, which the others
    would delete as soon as they hear of a node with this name and other data."""
    try:
        record = await read_own_record(context)
    except (Unavailable, NoAnswer) as error:
        if identity is not None:
            logger.warning("replaced_unknown error=%s setting=cluster.servers", str(error) or type(error).__name__)
        if identity is not None or not context.settings.replicas:
            return
        record = await _until_known(context)
    if record is None:
        return
    if identity is not None and identity.uid == record.uid:
        if not record.hosted_by:
            return
        aside = await asyncio.to_thread(_begin_again, store, directory)
        logger.warning("store_set_aside node=%s by=%s directory=%s", context.node, record.hosted_by, aside)
    await _until_free(context, record, directory)


def _begin_again(store: Store, directory: Path) -> Path:
    store.abandon()
    aside = set_aside(directory)
    store.read()
    return aside


async def _until_known(context: ClusterContext) -> ReplicaRecord | None:
    """Return this node's record as soon as NATS can be read."""
    loop = asyncio.get_running_loop()
    tell_at = 0.0
    while True:
        try:
            return await read_own_record(context)
        except (Unavailable, NoAnswer) as error:
            if loop.time() >= tell_at:
                tell_at = loop.time() + _TELL_EVERY
                why = str(error) or type(error).__name__
                logger.warning("empty_node_waits node=%s error=%s setting=cluster.servers", context.node, why)
        await asyncio.sleep(_LOOK_EVERY)


async def _until_free(context: ClusterContext, record: ReplicaRecord | None, directory: Path) -> None:
    """Wait until no copy can become this node. An operator who knows that all copies are lost ends that."""
    loop = asyncio.get_running_loop()
    tell_at = 0.0
    lost = directory / COPIES_LOST
    given_up = False
    while record is not None and not record.ended and (record.hosted_by or record.in_sync):
        where = record.hosted_by or ",".join(record.in_sync)
        if loop.time() >= tell_at:
            tell_at = loop.time() + _TELL_EVERY
            detail = "runs there from its copy, until it owes nothing" if record.hosted_by else "has its copy"
            logger.warning("waits_for_own_copy node=%s host=%s detail=%s if_lost=%s", context.node, where, detail, lost)
        await asyncio.sleep(_LOOK_EVERY)
        if lost.exists():
            lost.unlink()  # the next loss is another decision
            given_up = True
            logger.error("replicas_deleted node=%s copies=%s setting=node.data_dir", context.node, where)
        try:
            entry = await context.nats.read(BUCKET, node_key(context.node))
            record = ReplicaRecords(context).decode(entry)
            if given_up and entry is not None and record is not None:
                # Not as a member: this node has no data yet by which the others know it.
                await context.nats.raw.write(BUCKET, entry.key, None, entry.revision, context.nonce())
                return
        except (WrongRevision, Unavailable, Unknown, NoAnswer):
            continue
