"""Alarms: what an operator has to look at, and what is over."""

from typing import Any, Literal

from taipan.broker.server import Server

from .refusal import not_found

Which = Literal["all", "activated", "deactivated"]


class AlarmRecords:
    """The alarms of the node; they are not kept over a restart."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def records(self, which: Which = "all") -> list[dict[str, Any]]:
        """Active ones first, in each part the latest first."""
        records = self._server.alarms.records()
        if which == "all":
            return records
        return [record for record in records if record["activated"] == (which == "activated")]

    def deactivate(self, name: str) -> None:
        """An operator's word that it is over. Raises Refusal where it is not active."""
        if not self._server.alarms.deactivate(name):
            raise not_found("active alarm", name)

    def forget(self) -> None:
        """Clear those that are over."""
        self._server.alarms.forget()
