"""How other brokers are started; none is."""

from pathlib import Path

import pytest

from tools.bench.peers import PEERS, PeerError, Wanted, number


@pytest.mark.parametrize(
    "text, found",
    [
        ("mosquitto version 2.0.11\n\nmosquitto is an MQTT broker.", "2.0.11"),
        ("nats-server: v2.9.10", "2.9.10"),
        ("no such thing", None),
    ],
)
def test_version(text: str, found: str | None) -> None:
    assert number(text) == found


def test_mosquitto_is_configured_as_wanted(tmp_path: Path) -> None:
    def config(**more: object) -> list[str]:
        PEERS["mosquitto"].command(Wanted(1883, tmp_path)._replace(**more))  # type: ignore[arg-type]
        return (tmp_path / "mosquitto.conf").read_text().splitlines()

    plain = config()
    assert plain == ["listener 1883 127.0.0.1", "allow_anonymous true", "max_queued_messages 0"]
    assert config(nodelay=True) == [*plain, "set_tcp_nodelay true"]
    assert config(persistence=True) == [*plain, "persistence true", f"persistence_location {tmp_path}/"]
    assert config(transport="ws", other_port=7)[:3] == ["listener 7 127.0.0.1", plain[0], "protocol websockets"]
    pem = tmp_path / "pem"
    assert config(transport="ssl", certfile=pem, keyfile=pem)[1:3] == [f"certfile {pem}", f"keyfile {pem}"]


@pytest.mark.parametrize("name", ["nats", "aedes", "amqtt"])
def test_the_others_speak_over_tcp_only(name: str, tmp_path: Path) -> None:
    assert PEERS[name].command(Wanted(1883, tmp_path))
    with pytest.raises(PeerError, match="TCP"):
        PEERS[name].command(Wanted(1883, tmp_path, "ws"))
