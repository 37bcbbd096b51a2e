"""The loop of ``sn_noise``, ``coap_noise`` and ``lwm2m_noise``: many addresses send to a node for some time, and the
node must answer another one in the meantime."""

import socket
import time
from collections.abc import Callable

ADDRESSES = 64


def opened(host: str, port: str) -> tuple[list[socket.socket], socket.socket]:
    """Return the senders, which do not block, and the probe, which waits a second for an answer."""
    sockets = []
    for _ in range(ADDRESSES + 1):
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect((host, int(port)))
        sock.setblocking(False)
        sockets.append(sock)
    probe = sockets.pop()
    probe.settimeout(1)
    return sockets, probe


def send(
    senders: list[socket.socket],
    seconds: str,
    datagram: Callable[[], bytes],
    seen: Callable[[bytes], None],
    ask: Callable[[], None],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Send datagrams for so long, and give their answers to ``seen``. ``ask`` is called every second, and fails if the
    node does not answer. ``between`` is called after each round of the senders."""
    end, due, count = time.monotonic() + float(seconds), 0.0, 0
    while (now := time.monotonic()) < end:
        for sock in senders:
            try:
                sock.send(datagram())
                seen(sock.recv(70_000))
            except (BlockingIOError, ConnectionRefusedError):
                pass
            count += 1
        between()
        if now >= due:
            due = now + 1
            ask()
        time.sleep(0.005)
    print(f"{count} datagrams in {seconds} s; the node has answered all along")
