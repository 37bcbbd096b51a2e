"""``capmqtt``, with the names that pytest-mqtt has, over the broker of ``mqtt_broker_session``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Broker


@dataclass
class MqttMessage:
    """One message that was captured."""

    topic: str
    payload: str | bytes
    userdata: dict[str, Any] | None = None


@dataclass
class MqttSettings:
    """Where the broker is."""

    host: str
    port: int
    username: str = "guest"
    password: str = "guest"
    subscribe_all: bool = True


class MqttCaptureFixture:
    """What was published since the test began, and a way to publish."""

    def __init__(self, broker: Broker, decode_utf8: bool) -> None:
        self._broker = broker
        self._decode_utf8 = decode_utf8
        self._since = broker._number

    @property
    def messages(self) -> list[MqttMessage]:
        """As objects."""
        captured = self._broker._after(self._since)
        return [MqttMessage(m.topic, m.payload.decode() if self._decode_utf8 else m.payload) for m in captured]

    @property
    def records(self) -> list[tuple[str, str | bytes, dict[str, Any] | None]]:
        """As tuples of topic, payload and None."""
        return [(each.topic, each.payload, each.userdata) for each in self.messages]

    def publish(self, topic: str, payload: str | bytes | bytearray | float | None, **kwargs: Any) -> None:
        """Publish; it is captured when this returns. Keywords: ``qos``, ``retain``, ``properties``."""
        if isinstance(payload, int | float):
            payload = str(payload)
        data = payload if isinstance(payload, str) else b"" if payload is None else bytes(payload)
        self._broker.publish(topic, data, **kwargs)


@pytest.fixture(scope="session")
def mqtt_settings(mqtt_broker_session: Broker) -> MqttSettings:
    """Where the broker is."""
    return MqttSettings(mqtt_broker_session.host, mqtt_broker_session.port)


@pytest.fixture(scope="session")
def mosquitto(mqtt_settings: MqttSettings) -> tuple[str, int]:
    """Host and port of the broker, under the name of another one."""
    return mqtt_settings.host, mqtt_settings.port


@pytest.fixture
def capmqtt(request: pytest.FixtureRequest, mqtt_broker_session: Broker) -> MqttCaptureFixture:
    """What is published while the test runs. Marker or module variable ``capmqtt_decode_utf8``: payloads are texts."""
    decode = (
        getattr(request.module, "capmqtt_decode_utf8", False)
        or request.node.get_closest_marker("capmqtt_decode_utf8") is not None
    )
    return MqttCaptureFixture(mqtt_broker_session, bool(decode))
