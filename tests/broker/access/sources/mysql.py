"""MariaDB, as a process."""

import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from tests.systems.servers.mariadb import MariaDb

from . import Setup
from .sql_tables import database_set_up

TABLES = """
drop table if exists mqtt_user, mqtt_acl;
create table mqtt_user (id int auto_increment primary key, username varchar(100) unique, password varchar(200),
    salt varchar(40), is_superuser tinyint(1) default 0);
create table mqtt_acl (id int auto_increment primary key, allow int, ipaddr varchar(60), username varchar(100),
    clientid varchar(100), access int, topic varchar(100));
"""


@cache
def server_of_tests() -> MariaDb:
    """One for all tests of a process: a start takes seconds."""
    server = MariaDb()
    atexit.register(server.close)
    server.start()
    return server


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    async with database_set_up("mysql", server_of_tests(), TABLES) as made:
        yield made
