"""/nodes/{node}/log: the latest lines of the log."""

import io
import logging
from collections.abc import Iterator

import pytest

from taipan.broker.observability import log_ring
from taipan.broker.observability.log_lines import write_waiting
from taipan.management.configuration.config import LogSettings
from taipan.management.log_lines import setup_logging
from tests.support.api import assert_refused, managed_node

pytestmark = pytest.mark.asyncio

LOG = "/nodes/taipan@127.0.0.1/log"


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """A logger whose lines a node writes in this format."""
    root = logging.getLogger()
    level = root.level
    before = list(root.handlers)
    setup_logging(LogSettings(format=request.param, level="info"), io.StringIO())
    yield logging.getLogger("taipan.example")
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
    root.setLevel(level)


async def test_lines(log: logging.Logger) -> None:
    async with managed_node() as node:
        last = (await node.api.get(LOG, _limit=1)).data["last"]
        log.info("something_happened password_of=%s", "nobody")
        log.warning("client_refused client_id=%s", "evil\nclient")
        log.debug("not_written")
        data = (await node.api.get(LOG, after=last)).data
        lines = [each for each in data["lines"] if "taipan.example" in each["text"]]
        assert [each["level"] for each in lines] == ["INFO", "WARNING"]
        assert lines[0]["number"] < lines[1]["number"] <= data["last"]
        assert all("\n" not in each["text"] for each in lines)
        data = (await node.api.get(LOG, after=last, level="warning", _like_text="client_refused")).data
        assert [each["level"] for each in data["lines"]] == ["WARNING"]
        # A number of the process before.
        assert (await node.api.get(LOG, after=10**9)).data["lines"] != []


async def test_wrong() -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get(LOG, level="loud"), 400, 108, "level")
        assert_refused(await node.api.get(LOG, _limit=1001), 400, 108, "_limit")
        assert_refused(await node.api.get(LOG, after="x"), 400, 108, "after")
        assert_refused(await node.api.get("/nodes/no@where/log"), 404, 102)


async def test_no_secrets_of_requests_are_in_the_log(log: logging.Logger) -> None:
    async with managed_node() as node:
        await node.api.post("/apps", {"app_id": "x", "name": "x", "secret": "s3cret-of-an-app"})
        write_waiting()
        assert log_ring.ring.after(0, "INFO", "POST /apps", 1000)
        assert log_ring.ring.after(0, "DEBUG", "s3cret-of-an-app", 1000) == []
