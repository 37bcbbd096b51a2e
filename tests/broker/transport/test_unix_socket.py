"""The socket file of a listener: its rights, the one of a process that has ended, and whether the peer has left."""

import asyncio
import errno
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.config import ListenerSettings, ZoneSettings
from taipan.broker.loop.socket_state import FREE, IN_USE, LEFT_OVER, NO_SOCKET, state_of
from taipan.broker.transport import unix_socket
from taipan.broker.transport.binding import PlainSocket
from taipan.broker.transport.listener import Listener, ListenerError
from taipan.broker.transport.unix_socket import (
    SocketFileError,
    listening_socket,
    peer_has_closed,
    peer_of,
    rights_faults,
)
from tests.support.clock import Clock
from tests.support.peer import TIMEOUT


def settings(path: Path, **keys: str) -> ListenerSettings:
    return ListenerSettings(name="local", type="unix", bind=str(path), **keys)  # type: ignore[arg-type]


def left_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()


@pytest.mark.parametrize("mode", ["0660", "600", "0777"])
def test_rights(tmp_path: Path, mode: str) -> None:
    made = listening_socket(settings(tmp_path / "s", socket_mode=mode, socket_group=str(os.getgid())))
    found = (tmp_path / "s").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (int(mode, 8), os.getuid(), os.getgid())
    made.sock.close()
    made.remove()
    assert not (tmp_path / "s").exists()


def test_nobody_connects_before_the_rights_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a file, and nobody listens at it yet."""
    found: list[str] = []
    change = os.chmod

    def watched(path: str, mode: int, **more: bool) -> None:
        found.append(state_of(str(tmp_path / "s")))
        change(path, mode, **more)

    monkeypatch.setattr(unix_socket.os, "chmod", watched)
    listening_socket(settings(tmp_path / "s")).sock.close()
    assert found == [LEFT_OVER]


def test_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert state_of(str(path)) == FREE
    left_over(path)
    assert state_of(str(path)) == LEFT_OVER
    made = listening_socket(settings(path))
    assert state_of(str(path)) == IN_USE
    with pytest.raises(SocketFileError, match=r"^another process listens at this socket$"):
        listening_socket(settings(path))
    made.sock.close()
    path.unlink()
    path.write_text("a file of somebody")
    assert state_of(str(path)) == NO_SOCKET
    with pytest.raises(SocketFileError, match=r"^a file that is not a socket exists there$"):
        listening_socket(settings(path))
    assert path.read_text() == "a file of somebody"


def test_the_file_of_another_process_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made = listening_socket(settings(path))
    path.unlink()
    left_over(path)
    made.remove()
    assert path.exists()
    made.sock.close()
    path.unlink()
    made.remove()


@pytest.mark.parametrize("call", ["lstat", "unlink"])
def test_a_file_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """The stop goes on: clients still get their DISCONNECT, and the store is closed."""
    made = listening_socket(settings(tmp_path / "s"))

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(unix_socket.os, call, refuse)
    made.remove()
    monkeypatch.undo()
    made.sock.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"socket_not_removed path={tmp_path / 's'} error=Read-only file system"
    ]


@pytest.mark.parametrize("when", ["chown", "chmod"])
def test_a_link_that_is_put_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Between bind and the rights: the file that the link points to keeps its own."""
    path, victim = tmp_path / "s", tmp_path / "victim"
    victim.touch(mode=0o600)
    change = getattr(os, when)

    def swapped(*given: Any, **more: Any) -> None:
        path.unlink()
        path.symlink_to(victim)
        change(*given, **more)

    monkeypatch.setattr(unix_socket.os, when, swapped)
    made = listening_socket(settings(path, socket_mode="0666", socket_group=str(os.getgid())))
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600
    made.remove()
    assert path.is_symlink() and victim.exists()
    made.sock.close()


@pytest.mark.parametrize("link", [True, False])
def test_a_file_that_replaces_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool) -> None:
    path, victim = tmp_path / "s", tmp_path / "victim"
    victim.touch(mode=0o600)

    class Swapped(PlainSocket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            path.unlink()
            if link:
                path.symlink_to(victim)
            else:
                path.hardlink_to(victim)

    monkeypatch.setattr(unix_socket, "PlainSocket", Swapped)
    with pytest.raises(SocketFileError, match=r"^another process has replaced the socket$"):
        listening_socket(settings(path, socket_mode="0666"))
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600 and path.exists()


def test_one_that_does_not_listen_yet_is_not_taken_for_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    refused: list[str] = []
    waits = threading.Event()

    def second() -> None:
        try:
            listening_socket(settings(path)).sock.close()
        except SocketFileError as error:
            refused.append(str(error))
        finally:
            waits.set()

    other = threading.Thread(target=second)
    listen, lock = PlainSocket.listen, unix_socket.fcntl.flock

    def listen_later(self: PlainSocket, backlog: int) -> None:
        if not other.ident:
            other.start()
            assert waits.wait(TIMEOUT)
        listen(self, backlog)

    def watched(directory: int, operation: int) -> None:
        try:
            lock(directory, operation)
        except BlockingIOError:
            waits.set()
            raise

    monkeypatch.setattr(PlainSocket, "listen", listen_later)
    monkeypatch.setattr(unix_socket.fcntl, "flock", watched)
    made = listening_socket(settings(path))
    other.join(TIMEOUT)
    assert refused == ["another process listens at this socket"]
    assert state_of(str(path)) == IN_USE
    made.sock.close()


def test_a_stranger_keeps_the_lock_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "_BETWEEN_LOOKS", 0.0)
    directory = os.open(tmp_path, os.O_RDONLY)
    unix_socket.fcntl.flock(directory, unix_socket.fcntl.LOCK_EX)
    listening_socket(settings(tmp_path / "s")).sock.close()
    os.close(directory)


@pytest.mark.asyncio
async def test_the_loop_runs_while_a_stranger_keeps_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "_LOOKS", 1000)
    directory = os.open(tmp_path, os.O_RDONLY)
    unix_socket.fcntl.flock(directory, unix_socket.fcntl.LOCK_EX)
    clock: Any = Clock()
    listener = Listener(settings(tmp_path / "s"), ZoneSettings(), lambda listener: asyncio.Protocol(), clock)
    starting = asyncio.ensure_future(listener.start())
    await asyncio.sleep(0.05)
    assert not starting.done()
    os.close(directory)
    await starting
    assert listener.running
    await listener.stop()


@pytest.mark.asyncio
async def test_a_path_that_is_taken_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other port would help, as it does where another process has the address."""
    path = tmp_path / "s"
    left_over(path)
    monkeypatch.setattr(unix_socket, "state_of", lambda path: FREE)
    clock: Any = Clock()
    listener = Listener(settings(path), ZoneSettings(), lambda listener: asyncio.Protocol(), clock)
    with pytest.raises(ListenerError) as refused:
        await listener.start()
    assert str(refused.value) == f"listener local: cannot bind {path}: Address already in use"
    assert refused.value.taken == ""


def test_a_directory_that_the_node_may_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(unix_socket.os, "lstat", refuse)
    with pytest.raises(SocketFileError) as refused:
        listening_socket(settings(tmp_path / "s"))
    assert str(refused.value) == f"the user of the node may not access the directory {tmp_path}"


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"socket_owner": "nobody-of-this-name"}, ("socket_owner", "there is no user 'nobody-of-this-name'")),
        ({"socket_group": "no-such-group"}, ("socket_group", "there is no group 'no-such-group'")),
        ({"socket_owner": "99999999999"}, ("socket_owner", "the number of a user must be 0 to 4294967294")),
        ({"socket_owner": "4294967295"}, ("socket_owner", "the number of a user must be 0 to 4294967294")),
        ({"socket_owner": "9" * 5000}, ("socket_owner", "the number of a user must be 0 to 4294967294")),
        ({"socket_group": "4294967295"}, ("socket_group", "the number of a group must be 0 to 4294967294")),
    ],
)
def test_unknown_names(tmp_path: Path, keys: dict[str, str], told: tuple[str, str]) -> None:
    [fault] = rights_faults(settings(tmp_path / "s", **keys))
    assert (fault.key, str(fault)) == told
    with pytest.raises(SocketFileError):
        listening_socket(settings(tmp_path / "s", **keys))
    assert not (tmp_path / "s").exists()
    assert not rights_faults(settings(tmp_path / "s"))


def test_an_owner_that_only_root_can_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(unix_socket.os, "chown", refuse)
    with pytest.raises(SocketFileError, match=r"^the user of the node cannot give the socket to '0'$") as refused:
        listening_socket(settings(tmp_path / "s", socket_group="0"))
    assert refused.value.key == "socket_group"
    assert not (tmp_path / "s").exists()


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(SocketFileError, match=r"^the path of a socket has at most 107 bytes$"):
        listening_socket(settings(tmp_path / ("s" * 108)))


def test_the_peer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours:
        assert peer_of(ours) == (f"uid-{os.getuid()}", os.getpid())
        theirs.send(b"what is not read yet")
        assert not peer_has_closed(ours)
        theirs.close()
        assert peer_has_closed(ours)


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "_PEER_CREDENTIALS", -1)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_of(ours) == ("local", 0)
