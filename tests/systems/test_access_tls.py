"""What all sources in databases and directories hold to, with servers as processes: TLS, a new password of the server,
and users and rights that are taken away."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES
from tests.broker.access.sources import ldap, sql_tables
from tests.broker.access.sources import mysql as mysql_tables
from tests.broker.access.sources import postgresql as postgresql_tables
from tests.broker.access.test_sources import client, control, log_in
from tests.support.certificates import Certificates
from tests.systems.servers.mariadb import MariaDb
from tests.systems.servers.postgresql import Postgresql
from tests.systems.servers.redis import RedisServer
from tests.systems.servers.slapd import Slapd, user


class System(NamedTuple):
    """A server of its own, since its TLS changes. ``secure(certificate, key, authority)`` before a start."""

    name: str
    server: Any
    settings: dict[str, Any]
    secure: Callable[[str, str, str], object]


def _sql(name: str, server: Postgresql | MariaDb, tables: str) -> System:
    rows = f"insert into mqtt_user (username, password) values ('ann', '{sql_tables.sha256('right')}');"
    server.start()
    server.query(tables + rows)
    if isinstance(server, Postgresql):
        return System(name, server, sql_tables.settings_of(server), lambda cert, key, ca: server.tls(cert, key))
    return System(name, server, sql_tables.settings_of(server), server.tls)


def _redis() -> System:
    server = RedisServer()
    server.start()
    server.say("HSET", "mqtt_user:ann", "password", "right")
    settings = {"server": server.address, "password": server.password, "super_cmd": ""}
    return System("redis", server, settings, lambda cert, key, ca: server.tls(cert, key))


def _ldap(start_tls: bool) -> System:
    server = Slapd()
    server.start()
    server.change("add", user("ann", ldap.ssha("right")))
    settings = {**ldap.settings_of(server), "start_tls": start_tls}
    return System("ldap", server, settings, lambda cert, key, ca: server.tls(cert, key, ldaps=not start_tls))


SYSTEMS: dict[str, Callable[[], System]] = {
    "postgresql": lambda: _sql("postgresql", Postgresql(), postgresql_tables.TABLES),
    "mysql": lambda: _sql("mysql", MariaDb(), mysql_tables.TABLES),
    "redis": _redis,
    "ldap": lambda: _ldap(False),
    "ldap with StartTLS": lambda: _ldap(True),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    made = SYSTEMS[request.param]()
    try:
        yield made
    finally:
        made.server.close()


async def _asked(system: System, **settings: Any) -> tuple[int, str]:
    """The answer to a login, and what ``taipan check --connect`` says."""
    declared = next(source for source in ACCESS_SOURCES if source.name == system.name)
    access = control({system.name: {**system.settings, **settings}}, declared)
    access.start()
    try:
        (told,) = (await tried_sources(access.settings)).values()
        return (await log_in(access, client(), b"right")).reason_code, told
    finally:
        await access.stop()


@pytest.mark.asyncio
async def test_the_certificate_of_the_server_is_verified(system: System, tmp_path: Path) -> None:
    for name in ("good", "other"):
        (tmp_path / name).mkdir()
    good, other = Certificates(tmp_path / "good"), Certificates(tmp_path / "other")
    secure = {} if system.settings.get("start_tls") else {"tls": True}
    for subject, expired, cafile, verify, code in (
        ("localhost", False, good.ca, True, 0),
        ("localhost", False, "", True, 0x88),
        ("localhost", False, other.ca, True, 0x88),
        ("localhost", False, "", False, 0),
        ("elsewhere", False, good.ca, True, 0x88),
        ("localhost", True, good.ca, True, 0x88),
    ):
        certificate, key = good.issue(subject, expired=expired)
        system.server.stop()
        system.secure(certificate, key, good.ca)
        system.server.start()
        found, told = await _asked(system, **secure, cafile=cafile, tls_verify=verify)
        assert found == code, (subject, expired, cafile, verify)
        assert told.startswith("no_connection: ") if code else not told, told


def _new_password(system: System, password: str) -> None:
    server = system.server
    if isinstance(server, Postgresql):
        server.query(f"alter role {server.user} password '{password}'")
        server.disconnect()
    elif isinstance(server, MariaDb):
        server.query(f"alter user {server.user}@'127.0.0.1' identified by '{password}'")
        server.disconnect()
    else:
        server.password = password
        server.restart()


@pytest.mark.asyncio
async def test_a_new_password_of_the_server_comes_with_a_reload(system: System) -> None:
    declared = next(source for source in ACCESS_SOURCES if source.name == system.name)
    settings = {key: value for key, value in system.settings.items() if key != "start_tls"}
    access: AccessControl = control({system.name: settings}, declared)
    access.start()
    try:
        assert (await log_in(access, client(), b"right")).reason_code == 0
        _new_password(system, "n3w")
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, f"{system.name}_no_connection")
        key = "bind_password" if system.name == "ldap" else "password"
        table = msgspec.structs.replace(getattr(access.settings, system.name), **{key: "n3w"})
        access.reload(msgspec.structs.replace(access.settings, **{system.name: table}))
        assert (await log_in(access, client(), b"right")).reason_code == 0
    finally:
        await access.stop()
