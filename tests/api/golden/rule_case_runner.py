"""The same for cases of the rule engine: ids are those made here; a web server takes the place of the hook's."""

import json
import re
from typing import Any, Final

from taipan.broker.mqtt.packets import Pingreq, Pingresp
from tests.support.api import ApiClient, ManagedNode, Reply
from tests.support.http_sink import HttpSink
from tests.support.wire import Publish

from .case_runner import ADMIN
from .recordings import Case

HOOK: Final = "127.0.0.1:9910"
"""Where the recordings' web server was."""

_ID: Final = re.compile(r"(rule|resource):[0-9a-f]{8}")
_NUMBER: Final = re.compile(r"_[0-9]{18,20}")


class RuleCaseRunner:
    """Runs cases as ``CaseRunner`` does."""

    def __init__(self, node: ManagedNode, version: str, group: str) -> None:
        self.node = node
        self.group = group
        self.hook = ""
        self._sink = HttpSink()
        self.ids: dict[str, str] = {}
        """Those of the recordings -> those made here in their place."""

    async def set_up(self) -> None:
        await self._sink.start()
        self.hook = self._sink.url.removeprefix("http://")

    async def close(self) -> None:
        await self._sink.stop()

    def sides(self, recorded: Any, answered: Any) -> tuple[Any, Any]:
        """Ids are all one, and rows stand by their names."""
        return _by_name(_plain(recorded)), _by_name(_plain(answered))

    async def play(self, api: ApiClient, case: Case) -> tuple[Reply | None, list[str]]:
        """The answer to a case, and what differs beside it."""
        if "request" not in case:
            seen, observed = await self._republished(), case["observed"]
            return None, [] if seen == observed else [f"observed {observed} -> {seen}"]
        await self._before(case)
        request = case["request"]
        path, raw = request["path"], request.get("body_raw", "")
        if "body" in request:
            raw = json.dumps(request["body"])
        for theirs, ours in ((HOOK, self.hook), *self.ids.items()):
            path, raw = path.replace(theirs, ours), raw.replace(theirs, ours)
            path = path.replace(theirs.replace(":", "%3A"), ours.replace(":", "%3A"))
        reply = await api.ask(request["method"], path, raw=raw.encode() or None, headers=request["headers"])
        data = case["response"].get("body", {}).get("data") if request["method"] == "POST" else None
        if isinstance(data, dict) and "id" in data and isinstance(reply.json.get("data"), dict):
            self.ids[data["id"]] = reply.data["id"]
        return Reply(reply.status, reply.headers, reply.octets.replace(self.hook.encode(), HOOK.encode())), []

    async def _before(self, case: Case) -> None:
        """What the selection left out and the case builds upon."""
        api, note = self.node.api, case["note"]
        api.app = ADMIN
        path = case["request"]["path"].removeprefix("/api/v4")
        if note == "own id again" and case["response"]["body"]["code"] != 0:
            await api.post("/resources", case["request"]["body"])
        elif note == "description":
            assert (await api.put(f"/rules/{self.ids[path.removeprefix('/rules/')]}", {"enabled": True})).code == 0
        elif note == "after one match of two":
            client = await self.node.client("c1", 4)
            await client.publish("rt/1", b'{"msg":"hello"}', 1)
            await client.publish("rt/1", b'{"msg":"bye"}', 1)
        elif note == "actions" or (note == "array" and case["request"]["method"] == "PUT"):
            theirs = path.removeprefix("/rules/")
            new: dict[str, Any] = {"rawsql": 'select * from "rt/new"', "description": "d2"}
            if note == "array":
                new["actions"] = [{"name": "do_nothing", "params": {}}]
            assert (await api.put(f"/rules/{self.ids[theirs]}", new)).code == 0
        elif note == "rule after deleting its resource":
            hook = {"type": "web_hook", "config": {"url": f"http://{self.hook}/hook"}}
            recorded = case["response"]["body"]["data"]
            self.ids[recorded["actions"][0]["params"]["$resource"]] = (await api.post("/resources", hook)).data["id"]
            await self._hook_rule(recorded["id"], recorded["actions"][0]["params"])
            await (await self.node.client("hooked", 4)).publish("hk/1", b"x", 1)
        elif note == "in use by a rule":
            await self._hook_rule("rule:00000000", {"$resource": path.removeprefix("/resources/")})
        elif note == "again" and self.group == "resources":
            await api.delete(f"/rules/{self.ids['rule:00000000']}")
            assert (await api.delete(f"/resources/{self.ids[path.removeprefix('/resources/')]}")).code == 0

    async def _hook_rule(self, theirs: str, params: dict[str, Any]) -> None:
        params = {**params, "$resource": self.ids[params["$resource"]]}
        rawsql = 'select payload as p, clientid from "hk/#"'
        body = {"rawsql": rawsql, "actions": [{"name": "data_to_webserver", "params": params}]}
        self.ids[theirs] = (await self.node.api.post("/rules", body)).data["id"]

    async def _republished(self) -> list[dict[str, Any]]:
        watcher = await self.node.client("w", 4)
        await watcher.subscribe("w/#", qos=2)
        # The recordings' client was called c1, and so is the topic that it is republished to.
        await (await self.node.client("c1", 4)).publish("rp/in", b"abc", 1)
        await watcher.send(Pingreq())
        seen = []
        while not isinstance(packet := await watcher.receive(), Pingresp):
            if isinstance(packet, Publish):
                payload = bytes(packet.payload).decode()
                row = {"topic": packet.topic, "payload": payload, "qos": packet.qos, "retain": packet.retain}
                seen.append(row)
        return seen


def _plain(value: Any) -> Any:
    """With the parts of ids that are made up left out."""
    return json.loads(_NUMBER.sub("_0", _ID.sub(r"\1:0", json.dumps(value))))


def _by_name(body: Any) -> Any:
    """Rows of types and events as an object, columns in any order."""
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list) or not rows:
        return body
    key = next((key for key in ("event", "name") if key in rows[0]), None)
    if key is None:
        return body
    return {**body, "data": {row[key]: _row(row) for row in rows}}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Columns in any order."""
    return {**row, "columns": dict.fromkeys(row["columns"], 0)} if "columns" in row else row
