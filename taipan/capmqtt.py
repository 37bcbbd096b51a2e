"""The fixture ``capmqtt`` with the names of pytest-mqtt, for the broker of ``mqtt_broker_session``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Broker


@dataclass
class MqttMessage:
    """A captured message."""

    topic: str
    payload: str | bytes
    userdata: dict[str, Any] | None = None


@dataclass
class MqttSettings:
    """The address of the broker."""

    host: str
    port: int
    username: str = "guest"
    password: str = "guest"
    subscribe_all: bool = True


class MqttCaptureFixture:
    """The messages published since the test began, and a method to publish."""

    def __init__(self, broker: Broker, decode_utf8: bool) -> None:
        self._broker = broker
        self._decode_utf8 = decode_utf8
        self._since = broker._number

    @property
    def messages(self) -> list[MqttMessage]:
        """Return the captured messages as objects."""
        captured = self._broker._after(self._since)
        return [MqttMessage(m.topic, m.payload.decode() if self._decode_utf8 else m.payload) for m in captured]

    @property
    def records(self) -> list[tuple[str, str | bytes, dict[str, Any] | None]]:
        """Return the captured messages as tuples of topic, payload and None."""
        return [(each.topic, each.payload, each.userdata) for each in self.messages]

    def publish(self, topic: str, payload: str | bytes | bytearray | float | None, **kwargs: Any) -> None:
        """Publish a message; it is captured when this returns. Keywords: ``qos``, ``retain``, ``properties``."""
        if isinstance(payload, int | float):
            payload = str(payload)
        data = payload if isinstance(payload, str) else b"" if payload is None else bytes(payload)
        self._broker.publish(topic, data, **kwargs)


@pytest.fixture(scope="session")
def mqtt_settings(mqtt_broker_session: Broker) -> MqttSettings:
    """Return the address of the broker."""
    return MqttSettings(mqtt_broker_session.host, mqtt_broker_session.port)


@pytest.fixture(scope="session")
def mosquitto(mqtt_settings: MqttSettings) -> tuple[str, int]:
    """Return host and port of the broker; the fixture has the name that pytest-mqtt uses."""
    return mqtt_settings.host, mqtt_settings.port


@pytest.fixture
def capmqtt(request: pytest.FixtureRequest, mqtt_broker_session: Broker) -> MqttCaptureFixture:
    """Capture messages during a test. Marker or module variable ``capmqtt_decode_utf8``: payloads are strings."""
    decode = (
        getattr(request.module, "capmqtt_decode_utf8", False)
        or request.node.get_closest_marker("capmqtt_decode_utf8") is not None
    )
    return MqttCaptureFixture(mqtt_broker_session, bool(decode))
