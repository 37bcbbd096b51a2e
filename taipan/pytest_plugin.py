"""The pytest plugin: fixtures with a broker. Installing enables it; it imports the broker when a test uses one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("taipan_mqtt_port", "the port of the mqtt_broker_session broker; 0: any free port", default="0")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "mqtt(auth={'ann': 'secret'}, ...): options of the mqtt_broker broker, as keywords of taipan.Node",
    )
    # If pytest-mqtt is installed, its fixtures stay.
    if not any("pytest_mqtt" in str(plugin) for _, plugin in config.pluginmanager.list_name_plugin()):
        config.pluginmanager.import_plugin("taipan.capmqtt")


def _running(keywords: dict[str, Any]) -> Iterator[Broker]:
    from .testing import Broker, Misuse

    try:
        broker = Broker(**keywords).start()
    except Misuse as error:
        pytest.fail(str(error), pytrace=False)
    yield broker
    try:
        broker.stop()
    except Misuse as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def mqtt_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A new in-memory MQTT broker (``taipan.testing.Broker``) at a free port: ``mqtt_broker.host``, ``.port``."""
    keywords: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("mqtt"))):
        if marker.args:
            pytest.fail("@pytest.mark.mqtt accepts keywords only, such as auth={'ann': 'secret'}", pytrace=False)
        keywords |= marker.kwargs
    yield from _running(keywords)


@pytest.fixture(scope="session")
def mqtt_broker_session(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """One MQTT broker for all tests that use it."""
    port = pytestconfig.getini("taipan_mqtt_port")
    yield from _running({"listeners": [f"tcp://127.0.0.1:{port}"]})
