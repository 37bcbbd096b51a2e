"""Replay of the rule engine's recordings: ids are those made here, and a web server takes the hook's part."""

import json
import re
from typing import Any, Final

from broker.mqtt.packets import Pingreq, Pingresp
from tests.ruleengine.rig import HttpSink
from tests.support.api import ApiClient, ManagedNode, Reply, managed_node
from tests.support.wire import Publish

from .compare import compare
from .replay import NODE, SECRET, Case, Differences, cases

GROUPS: Final = ("rules", "actions", "resource_types", "resources")
HOOK: Final = "127.0.0.1:9910"
"""Where the recordings' web server was."""

_ID: Final = re.compile(r"(rule|resource):[0-9a-f]{8}")
_NUMBER: Final = re.compile(r"_[0-9]{18,20}")


async def replay(version: str, group: str) -> dict[int, Differences]:
    """What differs, by the case's number. A status may be that of either ``error_status``."""
    http = await _answers(version, group, "http")
    emqx = await _answers(version, group, "emqx")
    differences: dict[int, Differences] = {}
    for case in cases(version, group):
        seq, reply = case["seq"], http[case["seq"]]
        if "response" not in case:
            differences[seq] = () if reply == case["observed"] else (f"observed {case['observed']} -> {reply}",)
            continue
        recorded = case["response"]
        found = [] if recorded["status"] in (reply.status, emqx[seq].status) else [f"status -> {reply.status}"]
        if "body" in recorded:
            paged = "_page=" in case["request"]["path"]
            only, theirs, ours = _aligned(_plain(recorded["body"]), _plain(reply.json))
            found += only + compare(theirs, ours, paged)
        differences[seq] = tuple(dict.fromkeys(found))
    return differences


async def _answers(version: str, group: str, error_status: str) -> dict[int, Any]:
    """The reply to each case, or what a client was seen to get."""
    sink = await HttpSink().start()
    table = {"error_status": error_status, "apps": [{"id": "admin", "secret": SECRET}]}
    async with managed_node(table, node={"name": NODE}) as node:
        stage = _Stage(node, sink, group)
        api = ApiClient(node.management.url, prefix="", app=None)
        try:
            return {case["seq"]: await stage.play(api, case) for case in cases(version, group)}
        finally:
            await api.close()
            await sink.stop()


class _Stage:
    def __init__(self, node: ManagedNode, sink: HttpSink, group: str) -> None:
        self.node = node
        self.group = group
        self.hook = sink.url.removeprefix("http://")
        self.ids: dict[str, str] = {}
        """Those of the recordings -> those made here in their place."""

    async def play(self, api: ApiClient, case: Case) -> Any:
        if "request" not in case:
            return await self._republished()
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
        return Reply(reply.status, reply.headers, reply.octets.replace(self.hook.encode(), HOOK.encode()))

    async def _before(self, case: Case) -> None:
        """What the selection left out and the case builds upon."""
        api, note = self.node.api, case["note"]
        api.app = ("admin", SECRET)
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


def _aligned(recorded: Any, answered: Any) -> tuple[list[str], Any, Any]:
    """Rows of types and events side by side by their names; which of them only one side has, as differences."""
    rows = recorded.get("data")
    if not isinstance(rows, list) or not rows or "metrics" in rows[0]:
        return [], recorded, answered
    key = "event" if "event" in rows[0] else "name"
    theirs, ours = ({row[key]: _row(row) for row in side["data"]} for side in (recorded, answered))
    found = [f"{name}: missing" for name in theirs if name not in ours]
    found += [f"{name}: extra" for name in ours if name not in theirs]
    both = sorted(theirs.keys() & ours.keys())
    old = {**recorded, "data": {name: theirs[name] for name in both}}
    return found, old, {**answered, "data": {name: ours[name] for name in both}}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Columns in any order."""
    return {**row, "columns": dict.fromkeys(row["columns"], 0)} if "columns" in row else row
