"""SlowReader: the watch over a client whose socket is full. It has to take a little in time, or it is closed."""

import asyncio
from typing import Final

from ..channel import closing
from ..channel.channel import Channel

SLOWEST: Final = 1024
"""Bytes that a blocked client has to take within ``slow_reader_timeout``."""


class SlowReader:
    """Begins when the socket takes no more; ``stop`` it when it takes some again, or is gone."""

    __slots__ = ("_channel", "_left", "_timeout", "_timer", "_transport")

    def __init__(self, channel: Channel, transport: asyncio.Transport, timeout: float) -> None:
        """``timeout`` in seconds, above 0."""
        self._channel = channel
        self._transport = transport
        self._timeout = timeout
        self._watch(transport.get_write_buffer_size())

    @property
    def active(self) -> bool:
        """Whether it is still watching."""
        return self._timer.active

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()

    def _watch(self, left: int) -> None:
        self._left = left
        context = self._channel.context
        self._timer = context.timers.at(context.clock.now() + self._timeout, self._check)

    def _check(self) -> None:
        channel = self._channel
        if channel.writer.writable:
            return
        left = self._transport.get_write_buffer_size()
        if left > self._left - SLOWEST:
            closing.slow_reader(channel)
            self._transport.abort()
            return
        self._watch(left)
