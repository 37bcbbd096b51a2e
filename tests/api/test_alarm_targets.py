"""/alarm_targets and /alarm_silences: alarms that leave the node."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from taipan.management.alarm_targets.notifier import matches
from taipan.management.alarm_targets.outbox import BETWEEN, GIVE_UP, LONGEST_PAUSE
from taipan.management.operations.alarm_targets import MAX_SILENCES, MAX_TARGETS
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.certificates import Certificates
from tests.support.fake_cluster import fake_nodes
from tests.support.http_sink import HttpSink, status
from tests.support.node import free_port
from tests.support.smtp_server import SmtpServer
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

NODE = "taipan@127.0.0.1"
NETWORKS = {"refused_networks": ["10.0.0.0/8"]}


@pytest_asyncio.fixture
async def sink() -> AsyncIterator[HttpSink]:
    server = await HttpSink().start()
    yield server
    await server.stop()


async def add(node: ManagedNode, kind: str = "webhook", name: str = "ops", **config: Any) -> None:
    reply = await node.api.post("/alarm_targets", {"id": name, "type": kind, "config": config})
    assert reply.json == {"code": 0}


async def state(node: ManagedNode, name: str = "ops") -> dict[str, Any]:
    found: dict[str, Any] = (await node.api.get(f"/alarm_targets/{name}")).data["status"][0]
    return found


def events(sink: HttpSink) -> list[tuple[str, str]]:
    return [(each["event"], each["name"]) for each in map(json.loads, sink.bodies)]


async def test_a_web_hook_is_told_what_begins_and_ends(sink: HttpSink) -> None:
    async with managed_node() as node:
        node.server.alarms.activate("before", "it was there already")
        await add(node, url=f"{sink.url}/hook?a=1", headers={"Authorization": "Bearer s3cret"})
        await until(lambda: len(sink.requests) == 1)
        node.server.alarms.activate("disk", "the disk is full", {"file": "/x"})
        await until(lambda: len(sink.requests) == 2)
        method, path, headers, body = sink.requests[1]
        assert (method, path, headers["authorization"]) == ("POST", "/hook?a=1", "Bearer s3cret")
        assert headers["content-type"] == "application/json"
        told = json.loads(body)
        alarm = (await node.api.get(f"/nodes/{NODE}/alarms/activated")).data[0]
        assert told == {
            "event": "activated",
            "node": NODE,
            "text": f"ALARM disk on {NODE}: the disk is full",
            **alarm,
            "duration": told["duration"],
        }
        await node.pass_time(BETWEEN)
        node.server.alarms.deactivate("disk")
        await until(lambda: len(sink.requests) == 3)
        assert events(sink) == [("activated", "before"), ("activated", "disk"), ("deactivated", "disk")]
        assert json.loads(sink.bodies[2])["deactivate_at"] > told["activate_at"]
        found = await state(node)
        assert (found["state"], found["sent"], found["waiting"], found["last_error"]) == ("ready", 3, 0, "")


async def test_a_target_that_fails_is_tried_again_and_shows_why(sink: HttpSink) -> None:
    sink.answer = status(500)
    async with managed_node() as node, HttpSinkContext() as other:
        await add(node, url=sink.url)
        await add(node, name="other", url=other.url)
        node.server.alarms.activate("disk", "full")
        await until(lambda: len(sink.requests) == 1)
        await until(lambda: len(other.requests) == 1)  # which the other one does not delay
        found = await until_state(node, "failing")
        assert found["last_error"] == "HTTP 500: no" and found["failed"] == 1 and found["waiting"] == 1
        assert found["last_error_at"] > 1_600_000_000_000 and found["last_sent_at"] is None
        sink.answer = status(200)
        await node.pass_time(LONGEST_PAUSE)
        await until(lambda: len(sink.requests) == 2)
        found = await until_state(node, "ready")
        assert (found["sent"], found["waiting"], found["last_error"]) == (1, 0, "HTTP 500: no")


async def test_what_cannot_be_sent_for_a_day_is_dropped() -> None:
    async with managed_node() as node:
        await add(node, url=f"http://127.0.0.1:{free_port()}/")
        node.server.alarms.activate("disk", "full")
        await until_state(node, "failing")
        await node.pass_time(GIVE_UP)
        await until(lambda: node.server.metrics.refusals.snapshot().get("alarm_notice_dropped") == 1)
        found = await state(node)
        assert (found["dropped"], found["waiting"]) == (1, 0) and "Connect" in found["last_error"]


async def test_a_silence_keeps_back_until_it_ends(sink: HttpSink) -> None:
    async with managed_node() as node:
        await add(node, url=sink.url)
        now = int(node.server.clock.wall())
        reply = await node.api.post("/alarm_silences", {"alarms": "resource/*", "until": now + 3600, "reason": "work"})
        name = reply.data["id"]
        (silence,) = (await node.api.get("/alarm_silences")).data
        assert silence == {
            "id": name,
            "alarms": "resource/*",
            "until": now + 3600,
            "reason": "work",
            "created_by": "tester",
            "created_at": silence["created_at"],
        }
        node.server.alarms.activate("resource/web_hook/a/down", "away")
        node.server.alarms.activate("resource/web_hook/b/down", "away")
        node.server.alarms.activate("disk", "full")
        await until(lambda: events(sink) == [("activated", "disk")])
        node.server.alarms.deactivate("resource/web_hook/a/down")  # of which nobody was told
        assert [each["name"] for each in (await node.api.get(f"/nodes/{NODE}/alarms/activated")).data] == [
            "disk",
            "resource/web_hook/b/down",
        ]
        await node.pass_time(3600)
        await until(lambda: len(sink.requests) == 2)
        assert events(sink)[1] == ("activated", "resource/web_hook/b/down")
        assert (await node.api.get("/alarm_silences")).data == []


async def test_silences_are_compared_only_when_one_has_ended(sink: HttpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many silences and many alarms that are held back must not occupy the loop every second."""
    async with managed_node() as node:
        await add(node, url=sink.url)
        now = int(node.server.clock.wall())
        for pattern, seconds in (("disk", 60), ("disk", 600), ("memory", 120)):
            await node.api.post("/alarm_silences", {"alarms": pattern, "until": now + seconds})
        node.server.alarms.activate("disk", "full")
        node.server.alarms.activate("memory", "short")
        compared: list[str] = []

        def counting(pattern: str, name: str) -> bool:
            compared.append(name)
            return matches(pattern, name)

        monkeypatch.setattr("taipan.management.alarm_targets.notifier.matches", counting)
        for _ in range(50):
            await node.pass_time(1)
        assert len(compared) <= 6  # once, after the alarms
        await node.pass_time(20)
        assert sink.requests == []  # another silence of the disk continues
        await node.pass_time(60)
        await until(lambda: events(sink) == [("activated", "memory")])
        await node.pass_time(600)
        await until(lambda: events(sink)[1:] == [("activated", "disk")])


async def test_ending_a_silence_sends_at_once(sink: HttpSink) -> None:
    async with managed_node() as node:
        now = int(node.server.clock.wall())
        name = (await node.api.post("/alarm_silences", {"until": now + 3600})).data["id"]
        node.server.alarms.activate("disk", "full")
        await add(node, url=sink.url)
        assert (await state(node))["waiting"] == 0 and sink.requests == []
        assert (await node.api.delete(f"/alarm_silences/{name}")).json == {"code": 0}
        await until(lambda: events(sink) == [("activated", "disk")])
        assert_refused(await node.api.delete(f"/alarm_silences/{name}"), 404, 102)


async def test_targets_choose_alarms_by_name(sink: HttpSink) -> None:
    async with managed_node() as node:
        body = {"id": "ops", "type": "webhook", "config": {"url": sink.url}, "alarms": ["disk*", "resource/*/down"]}
        assert (await node.api.post("/alarm_targets", body)).code == 0
        for name in ("memory", "resource/web_hook/a/down", "disk_full"):
            node.server.alarms.activate(name, "m")
        await until(lambda: len(sink.requests) == 2)
        assert [name for _, name in events(sink)] == ["resource/web_hook/a/down", "disk_full"]


async def test_a_topic(sink: HttpSink) -> None:
    async with managed_node() as node:
        subscriber = await node.client("s")
        await subscriber.subscribe("ops/#", qos=1)
        await add(node, "mqtt", topic="ops/alarms", retain=True)
        node.server.alarms.activate("disk", "full")
        packet = await subscriber.expect_publish()
        assert (packet.topic, packet.qos) == ("ops/alarms", 1)
        assert json.loads(packet.payload)["text"] == f"ALARM disk on {NODE}: full"
        assert len(node.server.broker.retained) == 1


async def test_test(sink: HttpSink) -> None:
    async with managed_node() as node:
        await add(node, url=sink.url)
        assert (await node.api.post("/alarm_targets/ops/test")).data == {"warning": ""}
        told = json.loads(sink.bodies[0])
        assert (told["event"], told["text"]) == (
            "test",
            f"TEST test on {NODE}: This is a test. No alarm is active.",
        )
        sink.answer = status(404)
        assert_refused(await node.api.post("/alarm_targets/ops/test"), 400, 108, "not sent: HTTP 404")
        assert_refused(await node.api.post("/alarm_targets/no/test"), 404, 102)


async def test_change_disable_delete(sink: HttpSink) -> None:
    async with managed_node() as node:
        await add(node, url=f"http://127.0.0.1:{free_port()}/")
        node.server.alarms.activate("disk", "full")
        await until_state(node, "failing")
        changed = {"config": {"url": sink.url}}
        assert (await node.api.put("/alarm_targets/ops", changed)).code == 0
        await until(lambda: len(sink.requests) == 1)  # without waiting for the pause
        assert (await node.api.put("/alarm_targets/ops", {**changed, "enabled": False})).code == 0
        assert (await state(node))["state"] == "disabled"
        node.server.alarms.activate("memory", "short")
        assert (await node.api.put("/alarm_targets/ops", changed)).code == 0
        await until(lambda: len(sink.requests) == 3)  # what is active, as for a new target
        assert (await node.api.delete("/alarm_targets/ops")).code == 0
        assert (await node.api.get("/alarm_targets")).data == []
        assert_refused(await node.api.delete("/alarm_targets/ops"), 404, 102)


async def test_secrets_are_masked_and_come_back(sink: HttpSink) -> None:
    async with managed_node() as node:
        config = {"url": f"{sink.url}/a?token=s3cret", "headers": {"Authorization": "Bearer s3cret"}}
        await add(node, **config)
        for shown in ((await node.api.get("/alarm_targets")).data[0], (await node.api.get("/alarm_targets/ops")).data):
            assert "s3cret" not in json.dumps(shown)
            assert shown["config"]["headers"] == {"Authorization": "******"}
        assert (await node.api.put("/alarm_targets/ops", {"config": shown["config"]})).code == 0
        node.server.alarms.activate("disk", "full")
        await until(lambda: len(sink.requests) == 1)
        assert sink.requests[0][1] == "/a?token=s3cret" and sink.requests[0][2]["authorization"] == "Bearer s3cret"
        moved = {"config": {"url": "http://other/", "headers": {"X-Token": "******"}}}
        assert_refused(await node.api.put("/alarm_targets/ops", moved), 400, 108, "headers.X-Token")
        rows = (await node.api.get("/audit")).data
        assert {each["what"] for each in rows} == {"POST /alarm_targets", "PUT /alarm_targets/{id}"}
        assert "s3cret" not in json.dumps(rows)


async def test_answers_that_repeat_secrets_show_none(sink: HttpSink) -> None:
    async def repeat(request: web.Request, body: bytes) -> web.StreamResponse:
        text = f"Cannot POST {request.path_qs}\n{request.headers['Authorization']} {request.headers['X-Api-Key']}"
        return web.Response(status=404, text=text)

    sink.answer = repeat
    async with managed_node() as node:
        headers: Any = {"Authorization": "Bearer s3cret", "X-Api-Key": "hidden"}
        path = "services/T0123/8sVx5Qp2ZkLm9RtYw3Bn7Hc1"
        await add(node, url=f"{sink.url}/{path}?token=passw0rd&room=ops", headers=headers)
        reply = await node.api.post("/alarm_targets/ops/test")
        shown = "HTTP 404: Cannot POST /services/T0123/******?token=******&room=ops\\n****** ******"
        assert reply.json["message"] == f"not sent: {shown}"
        node.server.alarms.activate("disk", "full")
        assert (await until_state(node, "failing"))["last_error"] == shown


async def test_targets_survive_a_restart_and_are_told_again(tmp_path: Path, sink: HttpSink) -> None:
    config = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        await add(node, url=sink.url)
        node.server.alarms.activate("disk", "full")
        await until(lambda: len(sink.requests) == 1)
        until_ = int(node.server.clock.wall()) + 3600
        await node.api.post("/alarm_silences", {"alarms": "memory", "until": until_})
    async with managed_node(**config) as node:
        assert [each["alarms"] for each in (await node.api.get("/alarm_silences")).data] == ["memory"]
        node.server.alarms.activate("memory", "short")
        node.server.alarms.activate("disk", "full")
        await until(lambda: len(sink.requests) == 2)
        assert events(sink)[1] == ("activated", "disk")


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "id": ({"id": "a b"}, "id"),
    "type": ({"type": "sms"}, "type"),
    "no-url": ({"config": {}}, "url"),
    "scheme": ({"config": {"url": "ftp://host/"}}, "config.url"),
    "no-host": ({"config": {"url": "http:///x"}}, "config.url"),
    "port": ({"config": {"url": "http://host:99999/"}}, "config.url"),
    "space": ({"config": {"url": "http://host/a b"}}, "config.url"),
    "user": ({"config": {"url": "http://user:secret@host/"}}, "authorization header"),
    "header": ({"config": {"url": "http://host/", "headers": {"a": "b\r\nc: d"}}}, "line break"),
    "framing": ({"config": {"url": "http://host/", "headers": {"Content-Length": "1"}}}, "cannot be set"),
    "unknown-key": ({"config": {"url": "http://host/", "method": "PUT"}}, "method"),
    "alarms": ({"alarms": []}, "alarms"),
    "wildcard": ({"type": "mqtt", "config": {"topic": "a/#"}}, "config.topic"),
    "sys": ({"type": "mqtt", "config": {"topic": "$SYS/x"}}, "config.topic"),
    "qos": ({"type": "mqtt", "config": {"topic": "a", "qos": 3}}, "config.qos"),
    "sender": ({"type": "email", "config": {"host": "h", "sender": "a", "recipients": ["a@b"]}}, "config.sender"),
    "injection": (
        {"type": "email", "config": {"host": "h", "sender": "a@b", "recipients": ["a@b\r\nBcc: c@d"]}},
        "config.recipients",
    ),
    "no-recipient": ({"type": "email", "config": {"host": "h", "sender": "a@b", "recipients": []}}, "recipients"),
    "clear-text": (
        {
            "type": "email",
            "config": {
                "host": "h", "sender": "a@b", "recipients": ["a@b"], "security": "none", "username": "u",
                "password": "p",
            },
        },
        "clear text",
    ),
    "not-ascii": (
        {
            "type": "email",
            "config": {"host": "h", "sender": "a@b", "recipients": ["a@b"], "username": "u", "password": "pässword"},
        },
        "config.password: username and password must be ASCII",
    ),
}  # fmt: skip


async def test_refusals() -> None:
    async with managed_node() as node:
        body = {"id": "ops", "type": "webhook", "config": {"url": "http://host/"}}
        for wrong, about in REFUSALS.values():
            reply = await node.api.post("/alarm_targets", {**body, **wrong})
            assert reply.status == 400 and about in reply.json["message"], reply.text
        assert (await node.api.get("/alarm_targets")).data == []
        assert (await node.api.post("/alarm_targets", {**body, "enabled": False})).code == 0
        assert_refused(await node.api.post("/alarm_targets", body), 400, 113)
        assert_refused(await node.api.post("/alarm_silences", {"until": 1}), 400, 108, "until")


@pytest.mark.parametrize("kind", ["webhook", "email"])
async def test_refused_networks_are_refused(kind: str) -> None:
    config: dict[str, Any] = {"url": "http://10.1.2.3/"}
    if kind == "email":
        config = {"host": "10.1.2.3", "sender": "a@b.example", "recipients": ["c@d.example"]}
    async with managed_node(ruleengine=NETWORKS) as node:
        await add(node, kind, **config)
        reply = await node.api.post("/alarm_targets/ops/test")
        assert_refused(reply, 400, 108, "refused by ruleengine.refused_networks")


async def test_a_redirect_is_not_followed(sink: HttpSink) -> None:
    sink.answer = status(302, location="http://169.254.169.254/")
    async with managed_node() as node:
        await add(node, url=sink.url)
        assert_refused(await node.api.post("/alarm_targets/ops/test"), 400, 108, "redirects are not followed")
        assert len(sink.requests) == 1


async def test_a_node_stops_while_a_target_does_not_answer(sink: HttpSink) -> None:
    asked = asyncio.Event()

    async def never(request: web.Request, body: bytes) -> web.StreamResponse:
        asked.set()
        await asyncio.sleep(3600)
        return web.Response()

    sink.answer = never
    async with managed_node() as node:
        await add(node, url=sink.url)
        node.server.alarms.activate("disk", "full")
        await asked.wait()
        assert (await state(node))["state"] == "sending"


async def test_all_nodes_have_the_targets(sink: HttpSink) -> None:
    async with fake_nodes(2) as nodes:
        for node in nodes:
            await add(node, url=sink.url)  # these nodes share no rows
        (record,) = (await nodes[0].api.get("/alarm_targets")).data
        assert [each["node"] for each in record["status"]] == ["n1@host", "n2@host"]


# -------------------------------------------------------------------- e-mail


def mail(server: SmtpServer, **more: Any) -> dict[str, Any]:
    return {
        "host": "localhost",
        "port": server.port,
        "security": "none",
        "sender": "taipan@plant.example",
        "recipients": ["ops@plant.example", "boss@plant.example"],
        **more,
    }


async def test_an_email() -> None:
    server = await SmtpServer().start()
    async with managed_node() as node:
        await add(node, "email", **mail(server))
        node.server.alarms.activate(
            "resource/x\r\nBcc: evil@example.com/down", "away\n.\nmore", {"fault": "refused\n."}
        )
        await until(lambda: len(server.messages) == 1)
        recipients, message = server.messages[0]
        assert recipients == ["ops@plant.example", "boss@plant.example"]
        assert message["To"] == "ops@plant.example, boss@plant.example" and message["Bcc"] is None
        assert message["Subject"].startswith("[taipan] ALARM resource/x") and message["Auto-Submitted"]
        assert "fault: refused\\n." in message.get_content()
        assert (await until_state(node, "ready"))["sent"] == 1
    await server.stop()


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_an_email_over_tls(tmp_path: Path, security: str) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("localhost"))
    server = await SmtpServer(context, implicit=security == "tls").start()
    login = {"username": "taipan", "password": "s3cret", "security": security}
    async with managed_node() as node:
        await add(node, "email", **mail(server, **login))
        assert_refused(await node.api.post("/alarm_targets/ops/test"), 400, 108, "certificate")
        assert server.logins == []
        trusted = mail(server, **login, cacertfile=certificates.ca)
        assert (await node.api.put("/alarm_targets/ops", {"config": {**trusted, "password": "******"}})).code == 0
        assert (await node.api.post("/alarm_targets/ops/test")).data == {"warning": ""}
        assert server.logins == ["\0taipan\0s3cret"] and len(server.messages) == 1
    await server.stop()


ANSWERS = {
    "greeting": ("", b"554 go away\r\n", "SMTP 554: go away"),
    "sender": ("MAIL", b"550 who\r\n", "SMTP 550: who"),
    "recipients": ("RCPT", b"550 nobody\r\n", "SMTP 550: nobody"),
    "no-starttls": ("EHLO", b"250 test\r\n", "STARTTLS"),
    "endless": ("EHLO", b"250-more\r\n" * 20_000, "has sent more than 65536 bytes"),
    "no-smtp": ("", b"HTTP/1.1 400 Bad Request\r\n\r\n", ""),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_an_smtp_server_that_refuses(case: str) -> None:
    command, answer, reason = ANSWERS[case]
    server = await SmtpServer().start()
    server.answers[command] = answer
    async with managed_node() as node:
        await add(node, "email", **mail(server, security="starttls" if case == "no-starttls" else "none"))
        assert_refused(await node.api.post("/alarm_targets/ops/test"), 400, 108, reason)
        assert server.messages == []
    await server.stop()


@pytest.mark.parametrize("answer", [b"421 busy\r\n", b"500 what\r\n", b""])
async def test_an_email_that_was_taken_is_not_sent_again(answer: bytes) -> None:
    """Whatever the server answers to QUIT, or if it answers nothing."""
    server = await SmtpServer().start()
    server.answers["QUIT"] = answer
    async with managed_node() as node:
        await add(node, "email", **mail(server))
        assert (await node.api.post("/alarm_targets/ops/test")).data == {"warning": ""}
        assert len(server.messages) == 1
    await server.stop()


async def test_servers_that_do_not_answer_leave_the_threads_of_the_loop() -> None:
    server = await SmtpServer().start()
    server.answers[""] = b""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with managed_node() as node:
        await add(node, "email", **mail(server))
        attempt = asyncio.create_task(node.api.post("/alarm_targets/ops/test"))
        await until(lambda: server.connections == 1)
        other = asyncio.create_task(asyncio.to_thread(int))
        done, _ = await asyncio.wait({attempt, other}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {other}
        await server.stop()
        server.disconnect()
        assert_refused(await attempt, 400, 108, "not sent")


async def test_a_recipient_that_is_refused_is_a_warning() -> None:
    server = await SmtpServer().start()
    async with managed_node() as node:
        await add(node, "email", **mail(server, recipients=["ops@plant.example", "no@plant.example"]))
        server.refused.add("no@plant.example")
        reply = await node.api.post("/alarm_targets/ops/test")
        assert reply.data == {"warning": "the server has refused no@plant.example"}
        assert server.messages[0][0] == ["ops@plant.example"]
    await server.stop()


async def until_state(node: ManagedNode, wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(40):
        while (found := await state(node))["state"] != wanted:
            await asyncio.sleep(0.01)
    return found


class HttpSinkContext:
    """A second server."""

    async def __aenter__(self) -> HttpSink:
        self._sink = await HttpSink().start()
        return self._sink

    async def __aexit__(self, *_: object) -> None:
        await self._sink.stop()


# --------------------------------------------------------- export and import

ALARM_SECTIONS = ("alarm_targets", "alarm_silences", "alarm_thresholds")


async def exported(node: ManagedNode) -> dict[str, Any]:
    name = (await node.api.post("/data/export")).data["filename"]
    document: dict[str, Any] = (await node.api.get(f"/data/file/{name}")).json
    return document


async def shown(node: ManagedNode) -> list[Any]:
    """What the API shows, without figures of the node."""
    targets, silences, thresholds = [(await node.api.get(f"/{each}")).data for each in ALARM_SECTIONS]
    targets = [{**each, "status": len(each["status"])} for each in targets]
    silences = [{**each, "created_at": int(each["created_at"])} for each in silences]  # a file has whole seconds
    return [targets, silences, [(each["name"], each["value"]) for each in thresholds]]


async def test_an_export_contains_targets_silences_and_thresholds(sink: HttpSink, tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node() as node:
        await add(node, url=sink.url, headers={"Authorization": "Bearer s3cret"})
        body = {"id": "off", "type": "mqtt", "config": {"topic": "a"}, "enabled": False, "alarms": ["disk*"]}
        assert (await node.api.post("/alarm_targets", body)).code == 0
        now = int(node.server.clock.wall())
        for until_ in (now + 3600, now + 60):
            silence = {"alarms": "memory", "until": until_, "reason": "work"}
            assert (await node.api.post("/alarm_silences", silence)).code == 0
        assert (await node.api.put("/alarm_thresholds/disk_free", {"value": 10})).code == 0
        assert (await node.api.put("/alarm_thresholds/certificate_days", {"value": None})).code == 0
        await node.pass_time(61)
        document = await exported(node)
        before = await shown(node)
    assert [len(document[each]) for each in ALARM_SECTIONS] == [2, 1, 2]
    async with managed_node(**config) as node:
        dry = (await node.api.post("/data/import?dry_run=true", document)).data
        assert [dry[each] for each in ALARM_SECTIONS] == [2, 1, 2] and dry["totals"]["alarm_targets"]["create"] == 2
        assert (await node.api.get("/alarm_targets")).data == []
        assert (await node.api.post("/data/import", document)).code == 0
        assert await shown(node) == before
        node.server.alarms.activate("memory", "short")
        node.server.alarms.activate("disk", "full")
        await until(lambda: events(sink) == [("activated", "disk")])  # the other one is silenced
        assert sink.requests[0][2]["authorization"] == "Bearer s3cret"
        dry = (await node.api.post("/data/import?dry_run=true", document)).data
        assert all(dry["totals"][each]["same"] == len(document[each]) for each in ALARM_SECTIONS)
    async with managed_node(**config) as node:
        assert await shown(node) == before
        again = await exported(node)
        assert [again[each] for each in ALARM_SECTIONS] == [document[each] for each in ALARM_SECTIONS]


TARGET = {"id": "ops", "type": "webhook", "enabled": True, "alarms": ["*"], "config": {"url": "http://host/"}}
SILENCE = {"id": "s", "alarms": "*", "until": 4_102_444_800, "reason": "", "created_by": "", "created_at": 1}


@pytest.mark.parametrize(
    "section, record, what",
    [
        ("alarm_targets", {**TARGET, "id": "a b"}, "id"),
        ("alarm_targets", {**TARGET, "type": "sms"}, "webhook, email, mqtt"),
        ("alarm_targets", {**TARGET, "alarms": []}, "patterns"),
        ("alarm_targets", {**TARGET, "alarms": [1]}, "patterns"),
        ("alarm_targets", {**TARGET, "config": []}, "object"),
        ("alarm_targets", {**TARGET, "config": {"url": "file:///etc/passwd"}}, "config.url"),
        ("alarm_targets", {**TARGET, "config": {"url": "http://h/", "headers": {"Authorization": "******"}}}, "secret"),
        ("alarm_targets", {**TARGET, "config": {"url": "http://h/", "headers": {"a": "b\r\nc: d"}}}, "line break"),
        ("alarm_silences", {**SILENCE, "until": "tomorrow"}, "number"),
        ("alarm_thresholds", {"name": "heat", "value": 1}, "disk_free"),
        ("alarm_thresholds", {"name": "memory", "value": -1}, "number"),
        ("alarm_thresholds", {"name": "memory", "value": True}, "number"),
    ],
)
async def test_records_of_a_file_are_checked(section: str, record: dict[str, Any], what: str) -> None:
    async with managed_node() as node:
        reply = await node.api.post("/data/import", {"version": "4.4", "taipan": {}, section: [record]})
        assert_refused(reply, 400, 108, what)
        assert (await node.api.get("/alarm_targets")).data == []


async def test_an_import_keeps_the_limits() -> None:
    async with managed_node() as node:
        await add(node, "mqtt", topic="a")
        head = {"version": "4.4", "taipan": {}}
        targets = [{**TARGET, "id": f"t{number}"} for number in range(MAX_TARGETS)]
        reply = await node.api.post("/data/import", {**head, "alarm_targets": targets})
        assert_refused(reply, 400, 108, f"more than {MAX_TARGETS} alarm targets")
        silences = [{**SILENCE, "id": f"s{number}"} for number in range(MAX_SILENCES + 1)]
        reply = await node.api.post("/data/import", {**head, "alarm_silences": silences})
        assert_refused(reply, 400, 108, f"more than {MAX_SILENCES} silences")
        ended = [{**each, "until": 1} for each in silences]
        assert (await node.api.post("/data/import", {**head, "alarm_silences": ended})).code == 0
        assert (await node.api.get("/alarm_silences")).data == []
        assert (await node.api.post("/data/import", {**head, "alarm_targets": targets[1:]})).code == 0
        assert len((await node.api.get("/alarm_targets")).data) == MAX_TARGETS
