"""Notifications to systemd, if it requests them (``Type=notify``, ``WatchdogSec=``): sd_notify(3)."""

import asyncio
import logging
import os
import socket

logger = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state, such as ``READY=1``."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.connect(address)
            sending.send(state.encode("ascii"))
    except OSError as error:
        logger.warning("systemd_not_notified error=%s", error)


def watchdog_interval() -> float:
    """Return the seconds between two notifications, half of the limit that systemd sets; 0: it requests none of this
    process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
    except ValueError:
        return 0.0


async def keep_watchdog() -> None:
    """Notify systemd that the loop is running, as often as it requires; return immediately if it requires none."""
    interval = watchdog_interval()
    while interval > 0:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)
