"""Presence: events about connecting and disconnecting clients on ``$SYS/brokers/<node>/clients/<id>/...``, a module in
EMQX."""

from collections.abc import Callable
from typing import ClassVar

from ..core.hooks import Hooks
from ..session.client_info import ClientInfo
from .extension import Extension


class Presence(Extension):
    """Calls ``connected`` and ``disconnected`` while it is loaded."""

    name: ClassVar[str] = "emqx_mod_presence"
    description: ClassVar[str] = "Events of clients on $SYS"

    def __init__(
        self,
        hooks: Hooks,
        connected: Callable[[ClientInfo], None],
        disconnected: Callable[[ClientInfo, str], None],
    ) -> None:
        self._hooks = hooks
        self._connected = connected
        self._disconnected = disconnected
        self._active = False

    @property
    def active(self) -> bool:
        """Whether events are published."""
        return self._active

    def load(self) -> None:
        """Publish events from now on."""
        if not self._active:
            self._active = True
            self._hooks.client_connected.add(self._connected)
            self._hooks.client_disconnected.add(self._disconnected)

    def unload(self) -> None:
        """Stop publishing events."""
        if self._active:
            self._active = False
            self._hooks.client_connected.remove(self._connected)
            self._hooks.client_disconnected.remove(self._disconnected)
