"""Resources: the connections that actions share, and their types."""

from collections.abc import Mapping, Sequence

import msgspec

from taipan.ruleengine.delivery.buffered_row import decode_row
from taipan.ruleengine.delivery.dead_letters import DeadLetter
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.records import ListedResource, ResourceRecord, ResourceStatus, ResourceTypeRecord
from taipan.ruleengine.rules.trace import sample

from .durable_answer import check_storable, check_store_writable, wait_until_stored
from .listing import Listing
from .node_calls import NodeCalls
from .refusal import engine_refusals


class DeadLetterRecord(msgspec.Struct, kw_only=True):
    """A row to which the server repeatedly answered with an error. ``taken_at``: when a rule created it, ``at``: when
    it became a dead letter, in milliseconds; ``row``: as JSON, truncated to 4096 characters."""

    id: int
    action: str
    clientid: str
    at: int
    taken_at: int
    attempts: int
    reason: str
    row: str


class Resources:
    """Operations on resources. They raise Refusal; a change is on disk when its call returns. Secrets are masked."""

    def __init__(self, engine: RuleEngine, calls: NodeCalls) -> None:
        self._engine = engine
        self._tables = engine.server.tables
        self._calls = calls
        calls.serve(self.statuses, self.start_here)

    def types(self) -> list[ResourceTypeRecord]:
        return [each.record() for each in self._engine.resource_types.values()]

    def type(self, name: str) -> ResourceTypeRecord:
        with engine_refusals():
            return self._engine.resources.type(name).record()

    async def records(self, kind: str | None = None) -> tuple[list[ListedResource], list[str]]:
        """Return all resources, or those of one type, and the nodes that did not answer. ``status`` shows whether each
        resource is alive on all nodes."""
        with engine_refusals():
            records = self._engine.resources.records(kind)
        if not self._calls.clustered:
            return records, []
        found, missing = await self._calls.everywhere(self.statuses, [record.id for record in records])
        for record in records:
            record.status = all(statuses[record.id].is_alive for _, statuses in found if record.id in statuses)
        return records, self._calls.may_lack(missing)

    async def lookup(self, resource_id: str) -> tuple[ResourceRecord, list[str]]:
        """A resource with its status on each node, and the nodes that did not answer."""
        with engine_refusals():
            record = self._engine.resources.lookup(resource_id)
        if not self._calls.clustered:
            return record, []
        found, missing = await self._calls.everywhere(self.statuses, [resource_id])
        record.status = [statuses[resource_id] for _, statuses in found if resource_id in statuses]
        return record, self._calls.may_lack(missing)

    def statuses(self, resource_ids: list[str]) -> dict[str, ResourceStatus]:
        """Return the status of each of these resources that exists on this node."""
        resources = self._engine.resources
        known = {each: resources.lookup(each).status for each in resource_ids if each in resources}
        return {each: status[0] for each, status in known.items() if status}

    async def alive(self, resource_id: str) -> tuple[bool, list[str]]:
        """Return whether a resource is alive on all nodes that answer, and the nodes that did not."""
        record, missing = await self.lookup(resource_id)
        return all(each.is_alive for each in record.status or ()), missing

    async def create(
        self, kind: str, config: Mapping[str, object], resource_id: str | None = None, description: str = ""
    ) -> ResourceRecord:
        """Create a resource; return its record without ``status``. It is created even if the other system does not
        answer yet."""
        check_store_writable(self._tables)
        check_storable("config", config)
        with engine_refusals():
            record = await self._engine.resources.create(kind, config, resource_id, description)
        await wait_until_stored(self._tables)
        record.status = msgspec.UNSET
        return record

    async def test(self, kind: str, config: Mapping[str, object], resource_id: str | None = None) -> None:
        """Test whether such a resource can be reached; nothing is stored. A masked secret is the secret of
        ``resource_id``."""
        check_storable("config", config)
        with engine_refusals():
            await self._engine.resources.test(kind, config, resource_id)

    async def update(
        self, resource_id: str, config: Mapping[str, object] | None = None, description: str | None = None
    ) -> ResourceRecord:
        """Update the given fields; a secret that is given masked remains unchanged."""
        check_store_writable(self._tables)
        check_storable("config", config or {})
        with engine_refusals():
            record = await self._engine.resources.update(resource_id, config, description)
        await wait_until_stored(self._tables)
        return record

    async def start(self, resource_id: str) -> None:
        """Try immediately to reach the resource, from all nodes."""
        await self._calls.order_all(self.start_here, resource_id)

    async def start_here(self, resource_id: str) -> None:
        """Try to reach it from this node."""
        with engine_refusals():
            await self._engine.resources.start(resource_id)

    def dead_letters(self, resource_id: str, page: int, limit: int) -> Listing[DeadLetterRecord]:
        """Return the dead letters, oldest first."""
        with engine_refusals():
            letters = list(self._engine.resources.dead_letters(resource_id).items())
        return Listing(letters, page, limit, _letter, len(letters))

    async def send_dead_letters(self, resource_id: str, numbers: Sequence[int] | None = None) -> int:
        """Resend these dead letters, or all; return how many."""
        with engine_refusals():
            sent = self._engine.resources.send_dead_letters(resource_id, numbers)
        await wait_until_stored(self._tables)
        return sent

    async def remove_dead_letters(self, resource_id: str, numbers: Sequence[int] | None = None) -> int:
        """Delete these dead letters, or all; return how many."""
        with engine_refusals():
            removed = self._engine.resources.remove_dead_letters(resource_id, numbers)
        await wait_until_stored(self._tables)
        return removed

    async def delete(self, resource_id: str) -> None:
        """Delete a resource. Refused while rules use it."""
        check_store_writable(self._tables)
        with engine_refusals():
            await self._engine.resources.delete(resource_id)
        await wait_until_stored(self._tables)


def _letter(item: tuple[int, DeadLetter]) -> DeadLetterRecord:
    number, letter = item
    buffered = letter.buffered
    return DeadLetterRecord(
        id=number,
        action=buffered.action,
        clientid=buffered.client_id,
        at=int(letter.at * 1000),
        taken_at=int(buffered.at * 1000),
        attempts=letter.attempts,
        reason=letter.reason,
        row=sample(decode_row(buffered.row)),
    )
