"""Measure how long a restart takes. Fills a store with RETAINED (100,000) retained messages and SESSIONS (10,000)
sessions with QUEUED (10) messages each, starts the node, and prints the time until the first CONNACK.

``python -m tools.bench.restart``. PAYLOAD (100) is the size of a message in bytes, MEMORY
``durability.queue_memory``."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from taipan.broker.mqtt.constants import NEVER_EXPIRES
from taipan.broker.persistence.log import records
from taipan.broker.persistence.log.batch import encode
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.store.store import FILE
from tests.support.node import free_port
from tools.bench.brokers import CONFIG, ROOT
from tools.bench.interpreter import node_command

A_BATCH = 2000
PATIENCE = 300.0
CONNECT = bytes.fromhex("101300044d5154540402003c0007") + b"restart"
CONNACK = bytes.fromhex("20020000")


def facts(retained: int, sessions: int, queued: int, payload: bytes) -> Iterator[bytes]:
    """Return the records of such a node, in the order in which they were written."""
    for number in range(retained):
        body = records.StoredBody(f"retained/{number % 100}/{number}", payload, 1, True, {}, time.time(), "p", None, "")
        yield records.encode(records.RetainedStored(body))
    now = time.time()
    for number in range(1, sessions + 1):
        client_id = f"client-{number}"
        yield records.encode(
            records.SessionStored(
                number, client_id, None, 4, "127.0.0.1", 50000, "external", "default", "", now, now, now,
                NEVER_EXPIRES, 60, False, False, 0,
            )
        )  # fmt: skip
        filter = f"queue/{number}/#"
        yield records.encode(records.SubscriptionStored(number, filter, filter, None, 1, False, False, 0, ()))
    message = 0
    for number in range(queued):
        for session in range(1, sessions + 1):
            message += 1
            body = records.StoredBody(f"queue/{session}/{number}", payload, 1, False, {}, now, "p", None, "")
            yield records.encode(records.MessageStored(message, body, [(session, "", 1, False, (), 0)]))


def prepare(directory: Path, retained: int, sessions: int, queued: int, payload: bytes) -> int:
    """Write the store; return its size in bytes."""
    log = SqliteLog(directory / FILE)
    log.open()
    waiting: list[bytes] = []
    for record in facts(retained, sessions, queued, payload):
        waiting.append(record)
        if len(waiting) == A_BATCH:
            log.append(log.last + 1, encode(waiting))
            waiting.clear()
    log.append(log.last + 1, encode(waiting))
    log.checkpoint_and_close()
    return log.size_bytes


def first_connack(port: int, process: subprocess.Popen[bytes]) -> float:
    """Return the time of the first CONNACK, by ``time.perf_counter``."""
    until = time.perf_counter() + PATIENCE
    while time.perf_counter() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as client:
            client.settimeout(10)
            client.sendall(CONNECT)
            if client.recv(4) == CONNACK:
                return time.perf_counter()
        time.sleep(0.01)
    raise RuntimeError("no CONNACK")


def resident(pid: int) -> int:
    """Return the resident memory in KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def main() -> int:
    retained, sessions, queued, octets = (
        int(os.environ.get(name, default))
        for name, default in (("RETAINED", "100000"), ("SESSIONS", "10000"), ("QUEUED", "10"), ("PAYLOAD", "100"))
    )
    with tempfile.TemporaryDirectory(prefix="taipan-restart-") as name:
        directory = Path(name)
        size = prepare(directory, retained, sessions, queued, b"x" * octets)
        port = free_port()
        command = node_command("--config", str(CONFIG))
        command += ["--set", f"node.data_dir={directory}", "--set", "durability.level=disk"]
        command += ["--set", f"listeners.0.bind=127.0.0.1:{port}", "--set", f"listeners.1.bind=127.0.0.1:{free_port()}"]
        command += ["--set", "management.enabled=false", "--set", "dashboard.enabled=false"]
        if "MEMORY" in os.environ:
            command += ["--set", f"durability.queue_memory={os.environ['MEMORY']}"]
        with (directory / "log").open("wb") as log:
            started = time.perf_counter()
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log)
        try:
            seconds = first_connack(port, process) - started
            print(
                f"{retained:,} retained messages, {sessions:,} sessions of {queued:,} messages of {octets:,} bytes "
                f"({size / 1e6:.0f} MB): first CONNACK after {seconds:.2f} s, {resident(process.pid):,} KiB resident"
            )
        finally:
            process.terminate()
            process.wait()
            for line in (directory / "log").read_text(encoding="utf-8").splitlines():
                if "restored" in line or "ERROR" in line:
                    print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
