"""LwM2M devices: which are registered, and their last answers to commands. Each node knows those of its listeners."""

from itertools import chain
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from taipan.broker.gateway import Device, DeviceDirectory
from taipan.broker.server import Server

from .listing import EVERYTHING, Listing, PageQuery, window
from .node_calls import NodeCalls
from .node_listing import ListingPiece, Page, listing_of, piece_of


class DevicesQuery(PageQuery, kw_only=True):
    """The paging of a listing. Without these parameters, the answer has all devices, as in EMQX."""

    pages_on_demand: ClassVar[bool] = True


class CommandQuery(msgspec.Struct, kw_only=True):
    """``path``: the path of the command, like ``/3/0/0``; ``msgType``: its kind, like ``read``."""

    path: str
    msgType: str


class DeviceRow(msgspec.Struct):
    """A registered device, with the names of EMQX. ``imei``: endpoint name; ``lifetime``: seconds; ``version``: the
    version of LwM2M; ``objectList``: path -> name of the object."""

    imei: str
    lifetime: int
    ip_address: str
    port: int
    version: str
    objectList: dict[str, str]


class CommandAnswer(msgspec.Struct, kw_only=True):
    """The last answer to a kind of command for a path. ``code``: the CoAP code, like ``2.05``; 6.01 while there is no
    answer. ``reason``: only in an answer that the node gives in place of the device."""

    imei: str
    msgType: str
    code: str
    codeMsg: str
    path: str
    content: Any = UNSET
    reason: str | UnsetType = UNSET


class Lwm2m:
    """The registered devices of all nodes."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.count, self.piece, self.answer_here)

    async def search(self, query: DevicesQuery, max_rows: int, node: str | None = None) -> Page[DeviceRow]:
        """Return the devices, on one page if ``_limit`` is not given."""
        if query.limit is None:
            return await listing_of(self._calls, self, query, 1, EVERYTHING, node, meta=False)
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows), node)

    def count(self, query: DevicesQuery) -> int:
        """Count the devices of this node."""
        return sum(len(each.devices()) for each in self._directories())

    async def piece(self, query: DevicesQuery, skip: int, limit: int) -> ListingPiece[DeviceRow]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: DevicesQuery, skip: int, limit: int) -> Listing[DeviceRow]:
        """Return the devices of this node without the first ``skip``."""
        devices = list(chain.from_iterable(each.devices().values() for each in self._directories()))
        return window(devices, 1, limit, _row, skip)

    async def answer(self, endpoint: str, query: CommandQuery) -> CommandAnswer | None:
        """Return the last answer of a device, whichever node it is registered at. None: there was no such command."""
        here = self.answer_here(endpoint, query)
        if here is not None:
            return here
        found, missing = await self._calls.everywhere(self.answer_here, endpoint, query)
        answer = next((each for _, each in found if each is not None), None)
        if answer is None:
            self._calls.may_lack(missing)
        return answer

    def answer_here(self, endpoint: str, query: CommandQuery) -> CommandAnswer | None:
        """Return the last answer of a device of this node."""
        for directory in self._directories():
            device = directory.devices().get(endpoint)
            found = None if device is None else device.last_answer(query.path, query.msgType)
            if found is not None:
                return CommandAnswer(imei=endpoint, msgType=query.msgType, path=query.path, **found)
        return None

    def _directories(self) -> list[DeviceDirectory]:
        shared = (listener.gateway_shared for listener in self._server.listeners)
        return [each for each in shared if isinstance(each, DeviceDirectory)]


def _row(device: Device) -> DeviceRow:
    found = device.record()
    return DeviceRow(found.endpoint, found.lifetime, found.host, found.port, found.version, found.objects)
