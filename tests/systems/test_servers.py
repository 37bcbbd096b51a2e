"""The servers of these tests: what is done to them has happened when the call returns."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.systems.servers.mariadb import MariaDb
from tests.systems.servers.postgresql import Postgresql


@pytest.fixture(params=[Postgresql, MariaDb])
def server(request: pytest.FixtureRequest) -> Iterator[Postgresql | MariaDb]:
    made = request.param()
    made.start()
    yield made
    made.close()
    assert not made.directory.exists()


def _refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return True
    return False


def test_a_server_of_these_tests(server: Postgresql | MariaDb) -> None:
    server.query("create table t (i integer, x varchar(20)); insert into t values (1, 'é'), (2, null)")
    rows = server.query("select i, x from t order by i")
    assert rows[0] == ["1", "é"] and len(rows) == 2
    server.pause()
    server.resume()
    server.kill()
    assert not server.runs and _refused(server.port)
    server.start()
    assert server.query("select count(*) from t") == [["2"]]
    server.disconnect()
    server.restart()
    assert server.query("select count(*) from t") == [["2"]]
    server.pause()
    server.stop()
    assert not server.runs and _refused(server.port)


def test_servers_that_start_at_once_share_no_temporary_files() -> None:
    server = MariaDb()
    try:
        server.start()
        assert server.query("select @@tmpdir") == [[str(server.directory / "tmp")]]
    finally:
        server.close()
