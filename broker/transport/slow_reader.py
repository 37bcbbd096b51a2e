"""SlowReader: watches a client whose socket is full. A client that does not read a minimum amount in time is
disconnected."""

import asyncio
from typing import Final

from ..channel import closing
from ..channel.channel import Channel

SLOWEST: Final = 1024
"""Bytes that a blocked client has to read within ``slow_reader_timeout``."""


class SlowReader:
    """Starts when the socket is full; ``stop`` it when the socket accepts data again, or is closed."""

    __slots__ = ("_channel", "_left", "_timeout", "_timer", "_transport")

    def __init__(self, channel: Channel, transport: asyncio.Transport, timeout: float) -> None:
        """``timeout`` in seconds, above 0."""
        self._channel = channel
        self._transport = transport
        self._timeout = timeout
        self._watch(transport.get_write_buffer_size())

    @property
    def active(self) -> bool:
        """Whether a client is being watched."""
        return self._timer.active

    def stop(self) -> None:
        """Stop watching."""
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
