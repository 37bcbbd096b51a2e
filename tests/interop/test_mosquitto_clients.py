"""``mosquitto_pub`` and ``mosquitto_sub`` against a running node."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from tests.support.absent import absent

from .clients.client import PATIENCE, Address

pytestmark = [pytest.mark.timeout(60)]

VERSIONS = {3: "mqttv31", 4: "mqttv311", 5: "mqttv5"}


class Mosquitto:
    """Runs the two programs with one protocol version."""

    def __init__(self, address: Address, version: int) -> None:
        self.address = address
        self.version = version
        self.subscribers: list[subprocess.Popen[bytes]] = []

    def _command(self, program: str, arguments: tuple[str, ...]) -> list[str]:
        where = ["-h", self.address.host, "-p", str(self.address.port)]
        return [program, *where, "-V", VERSIONS[self.version], *arguments]

    def publish(self, *arguments: str, stdin: bytes | None = None) -> None:
        """Runs ``mosquitto_pub`` to its end."""
        command = self._command("mosquitto_pub", arguments)
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr.decode()

    def subscribe(self, *arguments: str) -> "Subscriber":
        """Starts ``mosquitto_sub`` and returns when its subscription stands."""
        process = subprocess.Popen(
            ["stdbuf", "-oL", *self._command("mosquitto_sub", ("-d", *arguments))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.subscribers.append(process)
        return Subscriber(process)

    def receive(self, *arguments: str) -> list[bytes]:
        """Runs a ``mosquitto_sub`` that ends by itself (``-C``); its lines."""
        done = subprocess.run(self._command("mosquitto_sub", arguments), capture_output=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.splitlines()

    def stop(self) -> None:
        for process in self.subscribers:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)
            assert process.stdout is not None
            process.stdout.close()


class Subscriber:
    """A running ``mosquitto_sub -d``: its lines, those of its debug output (``Client ... received``) told apart."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines: IO[bytes] = process.stdout
        self._deadline = threading.Timer(PATIENCE, process.kill)
        self._deadline.start()
        try:
            while b"Subscribed" not in (line := self._lines.readline()):
                assert line, "mosquitto_sub ended before it was subscribed"
        finally:
            self._deadline.cancel()

    def lines(self, count: int) -> list[bytes]:
        """The next ``count`` messages as printed."""
        deadline = threading.Timer(PATIENCE, self.process.kill)
        deadline.start()
        found: list[bytes] = []
        try:
            while len(found) < count:
                line = self._lines.readline()
                assert line, f"mosquitto_sub ended after {found}"
                if not line.startswith((b"Client ", b"Subscribed")):
                    found.append(line.rstrip(b"\n"))
        finally:
            deadline.cancel()
        return found

    def kill(self) -> None:
        """End it without a DISCONNECT."""
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture(params=[3, 4, 5], ids=["v31", "v311", "v5"])
def mosquitto(request: pytest.FixtureRequest, address: Address) -> Iterator[Mosquitto]:
    for program in ("mosquitto_pub", "mosquitto_sub"):
        if shutil.which(program) is None:
            absent(program)
    tool = Mosquitto(address, request.param)
    yield tool
    tool.stop()


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_publish_and_subscribe(mosquitto: Mosquitto, unique: str, qos: str) -> None:
    """[MQTT-3.8.4-8]"""
    subscriber = mosquitto.subscribe("-t", f"{unique}/#", "-q", "2", "-F", "%t %q %r %p")
    mosquitto.publish("-t", f"{unique}/a/é", "-q", qos, "-m", "hello")
    assert subscriber.lines(1) == [f"{unique}/a/é {qos} 0 hello".encode()]


def test_lines_keep_their_order(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-4.6.0-6]"""
    subscriber = mosquitto.subscribe("-t", unique, "-q", "1", "-F", "%p")
    lines = [b"%d" % number for number in range(300)]
    mosquitto.publish("-t", unique, "-q", "1", "-l", stdin=b"\n".join(lines) + b"\n")
    assert subscriber.lines(300) == lines


def test_retained(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6]"""
    mosquitto.publish("-t", unique, "-r", "-q", "1", "-m", "kept")
    assert mosquitto.receive("-t", unique, "-q", "1", "-C", "1", "-F", "%r %q %p") == [b"1 1 kept"]
    mosquitto.publish("-t", unique, "-r", "-n")
    subscriber = mosquitto.subscribe("-t", unique, "-F", "%r %p")
    mosquitto.publish("-t", unique, "-m", "live")
    assert subscriber.lines(1) == [b"0 live"]


def test_will(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-3.1.2-8]"""
    watcher = mosquitto.subscribe("-t", f"{unique}/will", "-q", "2", "-F", "%q %p")
    dying = mosquitto.subscribe(
        "-t", f"{unique}/x", "--will-topic", f"{unique}/will", "--will-payload", "gone", "--will-qos", "2"
    )
    dying.kill()
    assert watcher.lines(1) == [b"2 gone"]


def test_persistent_session(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-3.1.2-5]"""
    session = ("-i", unique[-20:], "-c", "-q", "1", "-t", unique)
    mosquitto.publish("-t", unique, "-r", "-q", "1", "-m", "first")
    assert mosquitto.receive(*session, "-C", "1", "-F", "%p") == [b"first"]
    for number in range(3):
        mosquitto.publish("-t", unique, "-q", "1", "-m", str(number))
    lines = mosquitto.receive(*session, "-C", "4", "-F", "%r %p")
    assert sorted(lines) == [b"0 0", b"0 1", b"0 2", b"1 first"]
    assert [line for line in lines if line != b"1 first"] == [b"0 0", b"0 1", b"0 2"]


def test_unsubscribe(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-3.10.4-2] [MQTT-3.10.4-4]"""
    subscriber = mosquitto.subscribe("-t", f"{unique}/+", "-t", f"{unique}/off", "-U", f"{unique}/off", "-F", "%p")
    mosquitto.publish("-t", f"{unique}/on", "-m", "heard")
    assert subscriber.lines(1) == [b"heard"]


@pytest.mark.parametrize("mosquitto", [5], indirect=True)
def test_properties(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-20]"""
    subscriber = mosquitto.subscribe(
        "-t", unique, "-F", "%C|%D|%R|%P|%F|%p", "-D", "subscribe", "subscription-identifier", "7"
    )
    mosquitto.publish(
        *("-t", unique, "-m", "x"),
        *("-D", "publish", "content-type", "text/plain"),
        *("-D", "publish", "correlation-data", "corr"),
        *("-D", "publish", "response-topic", "reply/to"),
        *("-D", "publish", "payload-format-indicator", "1"),
        *("-D", "publish", "user-property", "k", "1"),
        *("-D", "publish", "user-property", "k", "2"),
    )
    (line,) = subscriber.lines(1)
    content, correlation, response, user, indicator, payload = line.decode().split("|")
    assert (content, correlation, response, payload) == ("text/plain", "corr", "reply/to", "x")
    assert indicator == "1"
    assert user.split() == ["k:1", "k:2"]


@pytest.mark.parametrize("mosquitto", [5], indirect=True)
def test_session_expiry_of_its_own_choice(mosquitto: Mosquitto, unique: str) -> None:
    """[MQTT-3.1.2-23]"""
    session = ("-i", unique[-20:], "-c", "-x", "600", "-q", "2", "-t", unique)
    mosquitto.publish("-t", unique, "-r", "-q", "1", "-m", "first")
    assert mosquitto.receive(*session, "-C", "1", "-F", "%p") == [b"first"]
    mosquitto.publish("-t", unique, "-r", "-n")
    mosquitto.publish("-t", unique, "-q", "2", "-m", "missed")
    assert mosquitto.receive(*session, "-C", "1", "-F", "%p") == [b"missed"]
