"""Alarms: conditions that require an operator's attention, and those that have ended."""

from typing import Any, Literal

import msgspec

from taipan.broker.server import Server

from .node_calls import NodeCalls
from .refusal import not_found

Which = Literal["all", "activated", "deactivated"]


class AlarmRecord(msgspec.Struct):
    """Times and ``duration`` in microseconds; ``deactivate_at`` is "infinity" while the alarm is active."""

    activated: bool
    name: str
    message: str
    details: dict[str, Any]
    activate_at: int
    deactivate_at: int | str
    duration: int


class Alarms:
    """The alarms of the node; they do not survive a restart."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.records, self.deactivate, self.forget)

    def records(self, which: Which = "all") -> list[AlarmRecord]:
        """Return the active alarms first; within each part, the most recent first."""
        records = msgspec.convert(self._server.alarms.records(), list[AlarmRecord])
        if which == "all":
            return records
        return [record for record in records if record.activated == (which == "activated")]

    def deactivate(self, name: str) -> None:
        """Deactivate an alarm on behalf of an operator. Raises Refusal if it is not active."""
        if not self._server.alarms.deactivate(name):
            raise not_found("active alarm", name)

    def forget(self) -> None:
        """Clear the alarms that have ended."""
        self._server.alarms.forget()

    async def forget_everywhere(self) -> None:
        """Clear the ended alarms of all nodes. Raises Refusal."""
        await self._calls.order_all(self.forget)
