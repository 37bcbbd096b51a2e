"""The socket file of a listener: its rights, the one of a process that has ended, and whether the peer has left."""

import os
import socket
import stat
from pathlib import Path

import pytest

from taipan.broker.config import ListenerSettings
from taipan.broker.transport import unix_socket
from taipan.broker.transport.unix_socket import (
    FREE,
    IN_USE,
    LEFT_OVER,
    NO_SOCKET,
    SocketFileError,
    listening_socket,
    peer_has_closed,
    peer_of,
    rights_faults,
    state_of,
)


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

    def watched(path: str, mode: int) -> None:
        found.append(state_of(path))
        change(path, mode)

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


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"socket_owner": "nobody-of-this-name"}, ("socket_owner", "there is no user 'nobody-of-this-name'")),
        ({"socket_group": "no-such-group"}, ("socket_group", "there is no group 'no-such-group'")),
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
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(unix_socket.os, "chown", refuse)
    with pytest.raises(SocketFileError, match=r"^the user of the node may not give the socket to '0'$") as refused:
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
