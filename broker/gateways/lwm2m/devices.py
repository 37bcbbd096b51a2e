"""Data that the conversations of a listener share: its registered devices, and the CoAP requests that are
remembered."""

from collections.abc import Mapping

from ...gateway import Device
from ..coap.shared import Exchanges


class Devices(Exchanges):
    """The registered devices by endpoint name. See ``gateway.DeviceDirectory``."""

    __slots__ = ("_devices",)

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, Device] = {}

    def register(self, endpoint: str, device: Device) -> None:
        """Add a device that has registered. An older one with this name is about to end."""
        self._devices[endpoint] = device

    def leave(self, endpoint: str, device: Device) -> None:
        """A device has ended."""
        if self._devices.get(endpoint) is device:
            del self._devices[endpoint]

    def devices(self) -> Mapping[str, Device]:
        """See ``gateway.DeviceDirectory``."""
        return self._devices
