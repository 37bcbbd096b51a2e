"""What the conversations of a listener share: its registered devices, and what CoAP remembers of their requests."""

from typing import Any, Protocol

from ...gateway import DeviceRecord
from ..coap.shared import Exchanges


class Device(Protocol):
    """A registered device: ``conversation.Conversation``."""

    def record(self) -> DeviceRecord:
        """Return what the API shows of it."""

    def last_answer(self, path: str, kind: str) -> dict[str, Any] | None:
        """Return the last answer to a kind of command for a path; None: there was no such command."""


class Devices(Exchanges):
    """The registered devices by endpoint name. See ``gateway.DeviceDirectory``."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, Device] = {}

    def register(self, endpoint: str, device: Device) -> None:
        """A device has registered. An older one of this name is about to end."""
        self._devices[endpoint] = device

    def leave(self, endpoint: str, device: Device) -> None:
        """A device has ended."""
        if self._devices.get(endpoint) is device:
            del self._devices[endpoint]

    def device_records(self) -> list[DeviceRecord]:
        return [device.record() for device in self._devices.values()]

    def last_answer(self, endpoint: str, path: str, kind: str) -> dict[str, Any] | None:
        device = self._devices.get(endpoint)
        return None if device is None else device.last_answer(path, kind)
