"""The code of docs/recipes runs as it is printed, and what a recipe says fails without its steps does fail."""

import asyncio
import json
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from taipan import gateway
from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES, access_settings, written_type
from taipan.broker.config import AccessSettings, Count, ZoneSettings
from taipan.broker.core.hooks import Hooks, Notify
from taipan.broker.mqtt.message import Message
from taipan.broker.observability.metrics import NAMES, Metrics
from taipan.broker.server import Server
from taipan.broker.session import client_info
from taipan.management.http.routes import Call, Endpoints
from taipan.ruleengine.actions import action
from taipan.ruleengine.event import Event
from taipan.ruleengine.functions.registry import FUNCTIONS, NUMBER, register
from taipan.ruleengine.params import Param, Text
from tests.support.clock import Clock

RECIPES: Final = Path(__file__).parents[1] / "docs" / "recipes"


def code(name: str) -> list[str]:
    """The Python blocks of a recipe."""
    page = (RECIPES / f"{name}.md").read_text("utf-8")
    return [textwrap.dedent(block) for block in re.findall(r"(?ms)^ *```python\n(.*?)^ *```$", page)]


def test_endpoint() -> None:
    operation, endpoint, test = code("endpoint")
    names: dict[str, Any] = {"Server": Server, "Endpoints": Endpoints, "Call": Call, "Any": Any, "msgspec": msgspec}
    exec(operation, names)
    exec(endpoint, names)
    server = SimpleNamespace(hooks=Hooks())
    operations = SimpleNamespace(hook_points=names["HookPoints"](server))
    (route,) = names["routes"].all
    assert (route.method, route.path) == ("GET", "/hooks")
    rows = msgspec.convert(route.handler(SimpleNamespace(operations=operations)), route.reply)
    assert {"name": "message.publish", "callbacks": 0, "errors": 0} in msgspec.to_builtins(rows)
    compile(test, "endpoint.md", "exec")


def test_action() -> None:
    (text,) = code("action")
    names: dict[str, Any] = {"Final": Final, "Event": Event, "Param": Param, "Text": Text, **vars(action)}
    exec(text, names)
    made = names["COUNT_BYTES"].create(SimpleNamespace(params={"field": "note"}))
    assert made.run({"note": "four"}, None) and made.total == 4
    with pytest.raises(action.ActionFailed, match="note is not a text"):
        made.run({"note": 4}, None)
    made.close()


def test_sink() -> None:
    """Its package is what ``tests/ruleengine/test_added_sink.py`` installs."""
    package = RECIPES.parents[1] / "tests" / "packages" / "lines"
    page = (RECIPES / "add-a-sink.md").read_text("utf-8")
    assert code("add-a-sink") == [(package / "taipan_lines.py").read_text("utf-8")]
    assert f"```\n{(package / 'pyproject.toml').read_text('utf-8')}```" in page


def test_access_source() -> None:
    text, _ = code("add-an-access-source")
    names: dict[str, Any] = {"__name__": "taipan_badges"}
    exec(text, names)
    kind = access_settings(written_type(AccessSettings), (*ACCESS_SOURCES, names["BADGES"]))
    settings = msgspec.convert({"badges": {"numbers": {"ann": "0042"}, "closed": ["lift/2", "roof/+"]}}, kind)
    access = AccessControl(settings, Clock())  # type: ignore[arg-type]
    ann = client_info.ClientInfo("n@h", ZoneSettings(), client_id="c", username="ann")
    outcomes: list[Any] = [access.authentication.authenticate(ann, password) for password in (b"0042", b"0043")]
    assert [(each.reason_code, each.proved_by) for each in outcomes] == [(0, "badges"), (0x86, "")]
    decisions: list[Any] = [access.authorization.authorize(ann, "publish", topic) for topic in ("lift/1", "lift/2")]
    assert [each.allowed for each in decisions] == [True, False]
    assert decisions[1].setting == "access.badges.closed"
    denied = ("#", "lift/+", "+/2/#", "lift/2", "$share/g/#", "$queue/lift/2", "roof/#", "roof/1")
    for topic_filter in denied:
        told: Any = access.authorization.authorize(ann, "subscribe", topic_filter)
        assert not told.allowed and told.setting == "access.badges.closed", topic_filter
    for topic_filter in ("lift/1", "lift/2/+", "+", "roof/1/2"):
        told = access.authorization.authorize(ann, "subscribe", topic_filter)
        assert told.allowed, topic_filter
    assert not access.authorization.allows_some(ann, "lift/2") and access.authorization.allows_some(ann, "lift/#")
    access.close()


@pytest.mark.asyncio
async def test_remote_access_source() -> None:
    """``desk``, with a desk that answers, closes and opens again."""
    _, text = code("add-an-access-source")
    names: dict[str, Any] = {"__name__": "taipan_desk"}
    exec(text, names)
    lines: list[list[str]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if line := await reader.readline():
            lines.append(json.loads(line))
            writer.write(b"deny\n" if lines[-1][2] in ("0043", "lift/2") else b"allow\n")
        writer.close()

    desk = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = desk.sockets[0].getsockname()[1]
    kind = access_settings(written_type(AccessSettings), (*ACCESS_SOURCES, names["DESK"]))
    settings: Any = msgspec.convert({"desk": {"port": port}}, kind)
    access = AccessControl(settings, Clock())  # type: ignore[arg-type]
    ann = client_info.ClientInfo("n@h", ZoneSettings(), client_id="c", username='ann\n"')
    access.start()
    status = access.sources["desk"].status  # type: ignore[attr-defined]
    asked: Any = access.authentication.authenticate
    outcomes = [await asked(ann, password) for password in (b"0042", b"0043")]
    assert [(each.reason_code, each.proved_by) for each in outcomes] == [(0, "desk"), (0x86, "")]
    ann.proved_by = "desk"
    decisions = await access.authorization.ask(ann, "publish", ["lift/1", "lift/2"])
    assert [each.allowed for each in decisions] == [True, False] and status.word == "connected"
    assert lines[0] == ["ENTER", 'ann\n"', "0042"] and ["publish", 'ann\n"', "lift/2"] in lines
    assert await tried_sources(settings) == {"desk": ""}
    desk.close()
    await desk.wait_closed()
    assert (await asked(ann, b"0042")).detail == "desk_no_connection"
    assert (await tried_sources(settings))["desk"].startswith("no_connection: ")
    await access.stop()


def test_sql_function(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = code("sql-function")
    known = set(FUNCTIONS)
    try:
        exec(text, {"register": register, "NUMBER": NUMBER})
        assert set(FUNCTIONS) - known == {"clamp"}
    finally:
        for name in set(FUNCTIONS) - known:
            del FUNCTIONS[name]


def test_hook() -> None:
    point, call = code("hook")
    hooks = SimpleNamespace()
    exec(point, {"self": hooks, "Notify": Notify, "Message": Message})
    assert hooks.retained_stored.name == "retained.stored"
    seen: list[object] = []
    hooks.retained_stored.add(seen.append)
    message = Message("t", b"")
    exec(call, {"self": SimpleNamespace(hooks=hooks), "message": message})
    assert seen == [message]


def test_metric() -> None:
    """A name is made of the attribute, as the recipe has it: those there are show it."""
    assert "messages.delivered" in NAMES and isinstance(Metrics().messages_delivered, int)


def test_setting() -> None:
    (text,) = code("setting")
    names: dict[str, Any] = {"Count": Count}
    exec(text, names)
    kind = msgspec.defstruct("Zone", [("max_payload_size", names["__annotations__"]["max_payload_size"], 0)])
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"max_payload_size": -1}, kind)


def test_gateway() -> None:
    """The conversation of the recipe, without a node: what it sends, and what it writes."""
    conversation, made = code("add-a-gateway")
    names: dict[str, Any] = {"__name__": "line_gateway"}
    exec(conversation, names)
    exec(made, names)
    assert names["GATEWAY"].settings_from({"keep_alive": 5}).keep_alive == 5
    sent: list[Any] = []
    link = SimpleNamespace(send=sent.append, publish=lambda *args, **_: sent.append(args), write=sent.append)
    channel = names["GATEWAY"].channel(link, names["LineSettings"]())
    assert channel.received(b"CONNECT pump7\nPUB garden/soil 21\nSUB") == 33
    assert sent == [gateway.Connect(5, "pump7", keep_alive=60), ("garden/soil", b"21")]
    sent.clear()
    channel.packet(Message("garden/soil", b"21"))
    channel.packet(Message("a\nb", b"\xff\nMSG forged 1"))
    assert sent == [b"MSG garden/soil 21\n", "MSG a\\nb \ufffd\\nMSG forged 1\n".encode()]
    with pytest.raises(gateway.GatewayError, match="no such request: NOTHING"):
        channel.received(b"NOTHING\n")
