"""PostgreSQL, as a process."""

import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from tests.systems.servers.postgresql import Postgresql

from . import Setup
from .sql_tables import database_set_up

TABLES = """
drop table if exists mqtt_user, mqtt_acl;
create table mqtt_user (id serial primary key, is_superuser boolean, username varchar(100), password varchar(200),
    salt varchar(40));
create table mqtt_acl (id serial primary key, allow integer, ipaddr varchar(60), username varchar(100),
    clientid varchar(100), access integer, topic varchar(100));
grant all on mqtt_user, mqtt_acl to taipan;
"""


@cache
def server_of_tests() -> Postgresql:
    """One for all tests of a process: a start takes seconds."""
    server = Postgresql()
    atexit.register(server.close)
    server.start()
    return server


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    async with database_set_up("postgresql", server_of_tests(), TABLES) as made:
        yield made
