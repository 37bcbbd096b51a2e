"""The how-to docs/forward.md: its requests are sent as printed, to a second broker in place of the one it names."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.support.api import managed_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

PAGE = (Path(__file__).parents[2] / "docs" / "forward.md").read_text(encoding="utf-8")
REQUESTS = re.findall(r"curl -u \$TAIPAN -X POST \$API(/\w+) -d '(.*?)'\n```", PAGE, re.DOTALL)
LOOKS = re.findall(r"^curl -u \$TAIPAN \$API(/\S+)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_the_walk(level: str) -> None:
    assert [path for path, _ in REQUESTS] == ["/resources", "/rules", "/resources"]
    async with (
        managed_node(durability={"level": level}) as here,
        managed_node(node={"name": "there@127.0.0.1"}) as there,
    ):
        address = there.address()
        for path, body in REQUESTS:
            sent = json.loads(body.replace("mqtt.example.org:1883", f"{address.host}:{address.port}"))
            reply = await here.api.post(path, sent)
            assert (reply.status, reply.code) == (200, 0), reply.text
        away = await there.client("away")
        await away.subscribe("plants/7/#", qos=1)
        home = await here.client("home")
        await home.subscribe("from-cloud/#", qos=1)
        await home.publish("machines/press/state", b"up", 1)
        await away.expect_publish("plants/7/machines/press/state", b"up")
        # The subscription there comes about some time after the resource was made.
        async with asyncio.timeout(patience(40)):
            while not there.server.broker.router.reaches("orders/7/print"):
                await asyncio.sleep(0.01)
        await away.publish("orders/7/print", b"42", 1)
        await home.expect_publish("from-cloud/orders/7/print", b"42")
        for look in LOOKS:
            assert (await here.api.get(look)).status == 200
        (status,) = (await here.api.get(LOOKS[0])).data["status"]
        assert status["is_alive"] is True
        (metrics,) = (await here.api.get(LOOKS[1])).data["actions"][0]["metrics"]
        assert (metrics["taken"], metrics["success"], metrics["failed"]) == (1, 1, 0)
