"""Runs the recorded cases: the clients of the recordings, and what was done there that is not among the cases."""

import json
import re
from typing import Any, Final

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Connack, Pingreq, Pingresp
from tests.support.api import ApiClient, ManagedNode, Reply
from tests.support.peer import Peer
from tests.support.wire import Publish

from .recordings import Case, cases

ADMIN: Final = ("admin", "public")
"""The recordings' application."""
RECORDED: Final = {"4.1.5": 1_795_167_482, "4.4.19": 1_795_167_075}
"""When it was, in Unix seconds."""
_TIME: Final = re.compile(r"(_[gl]te_[a-z_]+=)(\d+)$")
_ABBREVIATED: Final = "...("


class CaseRunner:
    """The clients of the recordings, and what was done there that is not among the cases."""

    def __init__(self, node: ManagedNode, version: str, group: str) -> None:
        self.node = node
        self.version = version
        self.group = group
        self.clients: dict[str, Peer] = {}
        self.files: dict[str, str] = {}
        """Names of files that EMQX made -> those that this node made in their place."""

    async def set_up(self) -> None:
        node, group = self.node, self.group
        # Who comes first stands first where sessions are listed by their creation.
        self.clients["c3off"] = await node.client("c3off", 4, username="u2", clean_start=False, keep_alive=60)
        await self.clients["c3off"].subscribe("t/persist", qos=1)
        await self.clients["c3off"].drop()
        c1 = self.clients["c1"] = await node.client("c1", 4, username="u1", keep_alive=60)
        await c1.subscribe("t/1", qos=1)
        await c1.subscribe("t/+/x", qos=2)
        await c1.subscribe("$share/g1/s/t")
        await c1.subscribe("$queue/q/t", qos=1)
        expiry = {c.SESSION_EXPIRY_INTERVAL: 300}
        c2 = self.clients["c2"] = await node.client(
            "c2", 5, username="u1", clean_start=False, keep_alive=30, properties=expiry
        )
        await c2.subscribe("t/#", qos=2)
        odd = self.clients["c/4 ü%"] = await node.client("c/4 ü%", 4, username="u/4 é", keep_alive=60)
        await odd.subscribe("odd/ü/a b")
        old = self.clients["c5old"] = await node.client("c5old", 3, keep_alive=60)
        await old.subscribe("#")
        ws = self.clients["c6ws"] = await node.client("c6ws", 4, "ws", username="u6", keep_alive=60)
        await ws.subscribe("ws/t", qos=1)
        # It came with an empty identifier. The one made for it is taken here too: searches find what is in it.
        await node.client("MzMxMTQ5OTUxMjEwODE2MDc3OTQ4NDIyMDEzOTAzODMxMDE", 4, username="anon", keep_alive=60)
        if group.startswith("mqtt_publish"):
            self.clients["w"] = await node.client("w", 4)
            await self.clients["w"].subscribe("w/#", qos=2)
        if group == "acl_cache":
            await c1.subscribe("cache/s")
            for topic in ("t/1", "t/1/x", "ret/1", "cache/p"):
                await c1.publish(topic, b"x")
        if group == "clients_kick":
            await c2.nothing()
        if group == "mqtt_unsubscribe":
            await self._subscribe("api/1", "api/2", "api/3", "api/4", "b/1", "b/3", "b/4")
        if group == "mqtt_unsubscribe_batch":
            await self._subscribe("b/1", "b/3", "b/4")

    async def _subscribe(self, *topics: str) -> None:
        body = {"clientid": "c1", "topics": ",".join(topics), "qos": 1}
        assert (await self._ask("POST", "/mqtt/subscribe", body)).code == 0

    async def _ask(self, method: str, path: str, body: Any = None) -> Reply:
        asking = ApiClient(self.node.management.url, app=ADMIN)
        try:
            return await asking.ask(method, path, body)
        finally:
            await asking.close()

    async def play(self, api: ApiClient, case: Case) -> tuple[Reply | None, list[str]]:
        """The answer to a case, and what differs beside it."""
        if "request" not in case:
            return None, await self._observe(case)
        await self._before(case)
        reply = await self._send(api, case)
        return reply, await self._after(case)

    def sides(self, recorded: Any, answered: Any) -> tuple[Any, Any]:
        """Both bodies as they are to be compared."""
        return recorded, answered

    async def close(self) -> None:
        """Its clients are the node's."""

    async def _before(self, case: Case) -> None:
        """What the selection left out and the case builds upon."""
        path = case["request"]["path"]
        if path.endswith("/auth_user?_page=1&_limit=2"):
            for login in ("carol", "ok6"):
                await self._ask("POST", "/auth_user", [{"login": login, "password": "x", "is_superuser": False}])
        elif path.endswith("/emqx_acl?_page=1&_limit=2"):
            rules = [
                ("alice", "a/#/b", "pub", True),
                ("$all", "all/%c", "pubsub", False),
                ("root1", "x/#", "pubsub", True),
            ]
            for login, topic, action, allow in rules:
                rule = {"login": login, "topic": topic, "action": action, "allow": allow}
                await self._ask("POST", "/broker_acl", [rule])
        elif path.endswith("/acl/username/alice"):
            rule = {"username": "alice", "topic": "deny/sub", "action": "sub", "access": "deny"}
            await self._ask("POST", "/acl", rule)
        elif path.endswith("/acl/$all"):
            await self._ask("POST", "/acl", {"topic": "all/x", "action": "pubsub", "access": "allow"})
        elif path.endswith("/data/export") and case["request"]["method"] == "GET" and self.version == "4.1.5":
            (upload,) = [each for each in cases(self.version, "data") if each["note"] == "upload"]
            assert (await self._ask("POST", "/data/file", upload["request"]["body"])).code == 0

    async def _send(self, api: ApiClient, case: Case) -> Reply:
        request = case["request"]
        path = request["path"]
        if "spec_path" in case:
            path = "/api/v4" + case["spec_path"]
        for theirs, ours in self.files.items():
            path = path.replace(theirs, ours)
        path = _TIME.sub(lambda found: found[1] + str(self._now(found[2])), path)
        raw: bytes | None = request.get("body_raw", "").encode() or None
        if raw is not None and "\ufffd" in request["body_raw"]:
            raw = b"\xff\xfe" + request["body_raw"].lstrip("\ufffd").encode()
        if raw is None and "body" in request:
            raw = json.dumps(request["body"]).encode()
        if raw is not None and b"characters in all" in raw:
            body = request["body"]
            body["topic"] = body["topic"].partition(_ABBREVIATED)[0].ljust(70_002, "a")
            raw = json.dumps(body).encode()
        for theirs, ours in self.files.items():
            raw = raw if raw is None else raw.replace(theirs.encode(), ours.encode())
        if "until" in str(request.get("body")):
            # The recordings' time is over.
            raw = json.dumps({**request["body"], "until": int(self.node.clock.now()) + 600}).encode()
        reply = await api.ask(request["method"], path, raw=raw, headers=request["headers"])
        if path.endswith("/data/export") and request["method"] == "POST" and reply.json["code"] == 0:
            self.files[case["response"]["body"]["data"]["filename"]] = reply.json["data"]["filename"]
        return reply

    def _now(self, recorded: str) -> int:
        """A time of the recordings as it is now, in the same unit."""
        unit = 1000 if int(recorded) > 10**11 else 1
        return int(recorded) + int(self.node.clock.now() - RECORDED[self.version]) * unit if int(recorded) else 0

    async def _after(self, case: Case) -> list[str]:
        """Effects that differ from those recorded beside the answer."""
        found = []
        if "delivered_to_subscriber_of_w/#" in case:
            wanted = [(each["topic"], each["payload"], each["qos"]) for each in case["delivered_to_subscriber_of_w/#"]]
            got = [(p.topic, bytes(p.payload).decode(), p.qos) async for p in self._delivered(self.clients["w"])]
            if sorted(wanted) != sorted(got):
                found.append(f"delivered {wanted} -> {got}")
        if "subscriptions_of_c1_after" in case:
            found += [await self._subscribed(case)] if await self._subscribed(case) else []
        return found

    async def _subscribed(self, case: Case) -> str:
        """Only the topics that the case is about: what others did is not all among the cases."""
        body = case["request"].get("body")
        if not isinstance(body, dict):
            return ""
        about = [body[key] for key in ("topic",) if key in body] + body.get("topics", "").split(",")
        wanted = {topic: int(qos) for topic, qos in case["subscriptions_of_c1_after"] if topic in about}
        records = (await self._ask("GET", "/subscriptions/c1")).data
        got = {each["topic"]: each["qos"] for each in records if each["topic"] in about}
        if set(wanted) == set(got):
            return ""
        return f"subscribed {sorted(wanted)} -> {sorted(got)}"

    async def _delivered(self, peer: Peer) -> Any:
        """What has come by now."""
        await peer.send(Pingreq())
        while not isinstance(packet := await peer.receive(), Pingresp):
            if isinstance(packet, Publish):
                if packet.qos == 1:
                    await peer.puback(packet.packet_id)
                elif packet.qos == 2:
                    await peer.pubrec(packet.packet_id)
                yield packet
            elif isinstance(packet, Ack) and packet.type == c.PUBREL:
                await peer.pubcomp(packet.packet_id)

    async def _observe(self, case: Case) -> list[str]:
        """What an MQTT client saw: it is done again."""
        note, observed = case["note"], case["observed"]
        if note.startswith("c1 receives after API subscribe"):
            await self._subscribe("api/2")
            body = {"topic": "api/2", "payload": "after-sub", "clientid": "api"}
            assert (await self._ask("POST", "/mqtt/publish", body)).code == 0
            got = [
                {"topic": p.topic, "payload": bytes(p.payload).decode(), "qos": p.qos, "retain": p.retain}
                async for p in self._delivered(self.clients["c1"])
            ]
            return [] if got == observed else [f"observed {observed} -> {got}"]
        if "CONNECT" in note:
            got_rc = await self._connect(note)
            return [] if {"rc": got_rc} == observed else [f"observed {observed['rc']} -> {got_rc}"]
        if note.startswith("SUBACK"):
            await self._connect_as("alice", b"a2", 4)
            body_rules = [{"login": "alice", "topic": "deny/sub", "action": "sub", "allow": False}]
            assert (await self._ask("POST", "/broker_acl", body_rules)).code == 0
            # Rules believe a name that was proved.
            alice = {"login": "alice", "password": "a2", "is_superuser": False}
            assert (await self._ask("POST", "/auth_user", alice)).code == 0
            peer = await self.node.client("denied", 4, username="alice", password=b"a2")
            suback = await peer.subscribe("deny/sub", expect=[0x80])
            assert (await self._ask("DELETE", "/auth_user/alice")).code == 0
            return [] if suback.reason_codes == [0x80] else [f"observed {observed} -> {suback.reason_codes}"]
        if note.startswith("disconnect reasons seen by the v5"):
            packet = await self.clients["c2"].expect_disconnect(0x98, 0x80)
            reasons = {0x98: "Administrative action", 0x80: "Unspecified error"}
            got_reason = [] if packet is None else [reasons[packet.reason_code]]
            return [] if got_reason == observed else [f"observed {observed} -> {got_reason}"]
        if note.startswith("disconnect reasons after a denied publish"):
            await self._ask("POST", "/acl", {"username": "alice", "topic": "no", "action": "pub", "access": "deny"})
            peer = await self.node.client("publisher", 5, username="alice", password=b"a9")
            await peer.publish("no", b"x", qos=0)
            return [] if observed == ["Normal disconnection"] else ["observed"]
        raise AssertionError(note)

    async def _connect(self, note: str) -> str:
        """How a CONNECT ended, in the recordings' words."""
        if "banned" in note:
            code = (await self._connect_as(None, None, 4, "badc")).reason_code
        elif "right password" in note:
            code = (await self._connect_as("alice", b"a2" if self.version == "4.1.5" else b"a9", 4)).reason_code
        elif "not stored" in note:
            code = (await self._connect_as("stranger", b"x", 4)).reason_code
        else:
            code = (await self._connect_as("alice", b"nonsense", 5)).reason_code
        return {0: "Success", 4: "Bad user name or password", 5: "Not authorized", 0x86: "Bad user name or password"}[
            code
        ]

    async def _connect_as(
        self, username: str | None, password: bytes | None, version: int, client_id: str = "x"
    ) -> Connack:
        peer = Peer(self.node.address(), version)
        connack = await peer.connect(client_id, username=username, password=password, expect=None)
        await peer.close()
        return connack
