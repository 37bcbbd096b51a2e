"""The node's side of ``taipan-ctl``: a Unix socket in the data directory that only the node's own user may open.

A client sends one line of JSON, ``{"args": ["clients", "list"], "json": false}``, and receives frames: one byte for the
kind, four for the length, then the content. Kinds: ``o`` text for its output (empty: a keepalive), ``e`` text for its
error output, ``f`` a piece of a file, ``x`` the exit status in digits, which is the last frame. Each connection
executes one command."""

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.loop.socket_state import IN_USE, LEFT_OVER, NO_SOCKET, state_of

from ..operations.operations import Operations
from .execution import ControlRequest, carry_out
from .main import FAILED, SOCKET_NAME, USAGE, socket_address
from .output import Gone, Output

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
MAX_REQUEST_SIZE: Final = 1_048_576
"""Maximum length of a request line in bytes."""
REQUEST_TIMEOUT: Final = 10.0
_STOP_TIMEOUT: Final = 2.0
_LINGER: Final = 1.0


class ControlError(Exception):
    """The socket cannot be opened; the message is one line with its name."""


class ControlSocket:
    """``await start()``, ``await stop()``. A node has one."""

    def __init__(self, operations: Operations, data_dir: str) -> None:
        self.path = Path(data_dir).absolute() / SOCKET_NAME
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen. Raises ControlError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            listening = self._bind()
        except OSError as error:
            raise ControlError(f"{self.path}: {error.strerror or error}") from None
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=MAX_REQUEST_SIZE)
        found = self.path.stat()
        self._identity = (found.st_dev, found.st_ino)
        logger.info("control_started socket=%s", self.path)

    def _bind(self) -> socket.socket:
        """A listening socket under its name, with mode 0600 before anybody can connect to it.

        The lock of the data directory keeps other nodes away. Raises ControlError if there is a file that is not the
        socket of a process that has ended.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory: int | None = None
        try:
            address, directory = socket_address(str(self.path))
            found = state_of(address)
            if found == NO_SOCKET:
                raise ControlError(f"{self.path}: exists and is not a socket")
            if found == IN_USE:
                raise ControlError(f"{self.path}: in use by another node; each needs its own node.data_dir")
            if found == LEFT_OVER:
                self.path.unlink()
            listening.bind(address)
            os.chmod(self.path, 0o600)
            listening.setblocking(False)
            listening.listen(MAX_CONNECTIONS)
        except BaseException:
            listening.close()
            raise
        finally:
            if directory is not None:
                os.close(directory)
        return listening

    async def stop(self) -> None:
        """Stop; running commands get a moment to end."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_STOP_TIMEOUT)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        try:
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writer.transport.set_write_buffer_limits(high=0)
        output = Output(writer)
        try:
            if len(self._tasks) > MAX_CONNECTIONS:
                problem = f"has too many control connections, at most {MAX_CONNECTIONS}; try again"
                await output.line(f"error: node at {self.path}: {problem}", error=True)
                await output.end(FAILED)
            else:
                await self._converse(reader, output)
        except (Gone, ConnectionError) as error:
            logger.debug("control_connection_lost error=%s", error)
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only ``stop`` cancels. The streams' own callback needs a task that ends normally.
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, output: Output) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                line = await reader.readuntil(b"\n")
            request = msgspec.json.decode(line, type=ControlRequest)
        except asyncio.IncompleteReadError:
            return await self._refuse(output, "must be one line of JSON; the line does not end")
        except asyncio.LimitOverrunError:
            await self._refuse(output, f"has at most {MAX_REQUEST_SIZE} bytes")
            return await _read_away(reader)
        except TimeoutError:
            return await self._refuse(output, f"none arrived within {REQUEST_TIMEOUT:.0f} seconds")
        except RecursionError:
            return await self._refuse(output, "is nested too deeply")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return await self._refuse(output, f"is none: {error}")
        await carry_out(self._operations, request, output)

    async def _refuse(self, output: Output, why: str) -> None:
        await output.line(f"error: request: {why}", error=True)
        await output.end(USAGE)


async def _read_away(reader: asyncio.StreamReader) -> None:
    """Read the rest of the request: unread data in a socket that closes would discard the answer for a client that
    still sends."""
    try:
        async with asyncio.timeout(_LINGER):
            while await reader.read(MAX_REQUEST_SIZE):
                pass
    except TimeoutError:
        pass
