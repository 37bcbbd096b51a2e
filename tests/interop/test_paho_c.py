"""Paho C's own programs over WebSocket: they wait on the socket while packets of a frame of several lie in a buffer."""

import shutil
import subprocess
import threading
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

from tests.support.absent import absent

from .clients.client import PATIENCE, Address

pytestmark = [pytest.mark.timeout(60)]

MANY = 300


@pytest.fixture(params=["31", "311", "5"], ids=["v31", "v311", "v5"])
def version(request: pytest.FixtureRequest) -> str:
    for program in ("paho_c_pub", "paho_c_sub"):
        if shutil.which(program) is None:
            absent(program)
    return str(request.param)


def command(program: str, address: Address, version: str, topic: str, *arguments: str) -> list[str]:
    where = f"ws://{address.ws_host}:{address.ws_port}{address.ws_path}"
    return [program, "-c", where, "-V", version, "-t", topic, "-q", "1", "-i", f"{program}-{topic}", *arguments]


@pytest.fixture
def subscriber(version: str, address: Address, unique: str) -> Iterator[subprocess.Popen[bytes]]:
    """``paho_c_sub``, whose subscription stands."""
    started = command("paho_c_sub", address, version, unique, "--trace", "protocol")
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = threading.Timer(3 * PATIENCE, process.kill)
    deadline.start()
    yield process
    deadline.cancel()
    process.kill()
    process.wait(PATIENCE)
    assert process.stdout is not None
    process.stdout.close()


def lines(subscriber: subprocess.Popen[bytes], count: int, word: bytes) -> list[bytes]:
    """The next ``count`` lines that begin with ``word``, or what came of them."""
    assert subscriber.stdout is not None
    found: list[bytes] = []
    while len(found) < count and (line := subscriber.stdout.readline()):
        if line.startswith(word):
            found.append(line.rstrip(b"\n"))
    return found


def test_all_of_a_burst_arrive(address: Address, unique: str, subscriber: subprocess.Popen[bytes]) -> None:
    """[MQTT-6.0.0-2] makes it the client's fault where they do not; its users do not care."""
    assert subscriber.stdout is not None
    while b"SUBACK" not in (line := subscriber.stdout.readline()):
        assert line, "paho_c_sub ended before it was subscribed"
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2)
    publisher.max_inflight_messages_set(0)
    publisher.connect(address.host, address.port)
    for number in range(MANY):
        publisher.publish(unique, b"message %d" % number, 1)
    publisher.loop_start()
    assert lines(subscriber, MANY, b"message ") == [b"message %d" % number for number in range(MANY)]
    publisher.disconnect()
    publisher.loop_stop()


def test_it_publishes(address: Address, unique: str, version: str, subscriber: subprocess.Popen[bytes]) -> None:
    """It ends by itself when its message is acknowledged."""
    assert subscriber.stdout is not None
    while b"SUBACK" not in (line := subscriber.stdout.readline()):
        assert line, "paho_c_sub ended before it was subscribed"
    for number in range(5):
        text = f"message {number}"
        subprocess.run(command("paho_c_pub", address, version, unique, "-m", text), check=True, timeout=PATIENCE)
    assert lines(subscriber, 5, b"message ") == [b"message %d" % number for number in range(5)]
