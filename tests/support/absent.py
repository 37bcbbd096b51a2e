"""What a test does where a program or library that it wants is not there, and what brings it."""

import os
import re
from collections.abc import Iterable
from typing import Final, NoReturn

import pytest

# Debian's packages, by what tests want. Anything else comes by pip, with `make setup`.
PACKAGES: Final = {
    "MQTT.js": "nodejs npm",
    "bash": "bash",
    "cc": "gcc libc6-dev",
    "chromium": "chromium",
    "clickhouse-server": "clickhouse-server",
    "cspell": "nodejs npm",
    "fish": "fish",
    "haproxy": "haproxy",
    "influxd": "influxdb",
    "initdb": "postgresql",
    "logrotate": "logrotate",
    "make": "make",
    "mariadb": "mariadb-client",
    "mariadb-install-db": "mariadb-server",
    "mariadbd": "mariadb-server",
    "mosquitto": "mosquitto",
    "mosquitto_pub": "mosquitto-clients",
    "mosquitto_sub": "mosquitto-clients",
    "paho_c_pub": "paho.mqtt.c-examples",
    "paho_c_sub": "paho.mqtt.c-examples",
    "nginx": "nginx libnginx-mod-stream",
    "node": "nodejs npm",
    "openssl/ssl.h": "libssl-dev",
    "postgres": "postgresql",
    "promtool": "prometheus",
    "psql": "postgresql-client",
    "rabbitmq-server": "rabbitmq-server",
    "redis-server": "redis-server",
    "stdbuf": "coreutils",
    "systemd-analyze": "systemd",
    "zsh": "zsh",
}
_ABSENT: Final = re.compile(r"(?:^|: )(\S+) is not installed")


def reason(what: str) -> str:
    return f"{what} is not installed"


def absent(what: str) -> NoReturn:
    """Skip because it is not installed; where the continuous integration should have put it there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason(what))
    pytest.skip(reason(what))


def what_to_install(reasons: Iterable[str]) -> str | None:
    """One line, of the reasons of the tests that were skipped: which command has how many of them run."""
    wanted: set[str] = set()
    count = 0
    for each in reasons:
        found = _ABSENT.search(each)
        if found is not None and found[1] in PACKAGES:
            count += 1
            wanted |= set(PACKAGES[found[1]].split())
    if not count:
        return None
    what = "One that was skipped runs" if count == 1 else f"{count} that were skipped run"
    return f"{what} after, as root: apt-get install -y {' '.join(sorted(wanted))}"
