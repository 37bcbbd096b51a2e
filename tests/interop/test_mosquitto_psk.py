"""``mosquitto_pub --psk`` and ``mosquitto_sub --psk`` against a listener with pre-shared keys."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.absent import absent
from tests.support.node import free_port
from tests.support.psk import KEY, OTHER_KEY, PskFile, needs_psk, psk_works

from .clients.client import PATIENCE, Address
from .conftest import RunningNode
from .test_mosquitto_clients import Mosquitto

__all__ = ["psk_works"]

pytestmark = [pytest.mark.timeout(60), needs_psk]

CONFIG = """
[[listeners]]
name = "psk"
type = "ssl"
bind = "127.0.0.1:{port}"
allow_anonymous = false
[listeners.tls]
psk_file = "{file}"
psk_hint = "plant 4"
psk_identity_as_username = true
[access]
no_match = "deny"
[[access.rules]]
allow = true
topics = ["of/%u/#"]
"""


def with_key(identity: str, key: bytes = KEY) -> tuple[str, ...]:
    return "--psk-identity", identity, "--psk", key.hex()


def test_mosquitto_clients_with_a_key(tmp_path: Path) -> None:
    for program in ("mosquitto_pub", "mosquitto_sub"):
        if shutil.which(program) is None:
            absent(program)
    port = free_port()
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(port=port, file=PskFile(tmp_path).path))
    node = RunningNode(config, "--set", f"node.data_dir={tmp_path}/data")
    tool = Mosquitto(Address("127.0.0.1", port, "127.0.0.1", port), 4)
    try:
        # By the rule, pump-7 may use what has its name, and nothing else.
        subscriber = tool.subscribe(*with_key("pump-7"), "-t", "of/#", "-t", "of/pump-7/#", "-q", "1", "-F", "%t %p")
        tool.publish(*with_key("pump-7"), "-t", "of/pump-8/x", "-q", "1", "-m", "lost")
        tool.publish(*with_key("pump-7"), "-t", "of/pump-7/x", "-q", "1", "-m", "came")
        assert subscriber.lines(1) == [b"of/pump-7/x came"]
        for identity, key in (("pump-8", KEY), ("pump-7", OTHER_KEY)):
            command = tool._command("mosquitto_pub", (*with_key(identity, key), "-t", "of/pump-7/x", "-m", "no"))
            assert subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode != 0
    finally:
        tool.stop()
        assert node.stop() == 0
