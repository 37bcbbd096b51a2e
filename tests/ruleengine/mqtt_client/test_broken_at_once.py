"""A server that breaks the protocol right after its CONNACK, on both event loops.

asyncio ignores what is written to a closed transport, uvloop raises RuntimeError.
"""

from __future__ import annotations

import pytest

from taipan.ruleengine.mqtt_client.connection import BrokerUnreachable
from tests.broker.transport.echo import on_both_loops
from tests.ruleengine.mqtt_client.other_side import Visit, client_of, other_side
from tests.support.api import managed_node
from tests.support.fake_engine import QUICK

BROKEN = pytest.mark.parametrize(
    "octets, said",
    [
        (b"\xff\xff\xff\xff\xff\xff", "bad packet"),
        (b"\x20\x03\x00\x00\x00", "second CONNACK"),
        (b"\xc0\x00", "only a client sends"),
        (b"\x30\x04\x00\x01t\x00", "without a subscription"),
    ],
)


@pytest.mark.parametrize("ends", ["closes", "resets", "stays"])
@BROKEN
@on_both_loops
async def test_a_trial_says_what_is_broken(octets: bytes, said: str, ends: str) -> None:
    async def script(visit: Visit) -> None:
        await visit.accept_with(octets)
        if ends == "closes":
            visit.writer.close()
        elif ends == "resets":
            visit.writer.transport.abort()
        else:
            await visit.gone()

    async with other_side(script) as there:
        with pytest.raises(BrokerUnreachable) as told:
            await client_of(there.port, 5).try_once()
    assert said in str(told.value) or ends == "resets"


@BROKEN
@on_both_loops
async def test_the_api_creates_the_resource_and_says_why_it_is_down(octets: bytes, said: str) -> None:
    async def script(visit: Visit) -> None:
        await visit.accept_with(octets)
        await visit.gone()

    async with managed_node(ruleengine=QUICK) as node, other_side(script) as there:
        config = {"address": f"127.0.0.1:{there.port}", "proto_ver": "mqttv5", "pool_size": 1}
        made = await node.api.post("/resources", {"type": "bridge_mqtt", "config": config})
        assert made.status == 200 and made.code == 0
        (status,) = (await node.api.get(f"/resources/{made.data['id']}")).data["status"]
        assert status["is_alive"] is False and said in status["reason"]
        assert (await node.api.post(f"/resources/{made.data['id']}")).status == 400
