"""--json of every command there is: what comes is JSON, and what docs/ctl-json.md says of it."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.observability.log_ring import ring
from taipan.management.ctl.index import COMMANDS
from taipan.management.operations.annotations import AnnotationsQuery
from tests.support.api import ManagedNode, managed_node
from tests.support.ctl import ROOT, ctl, run
from tests.support.waiting import until

PAGE = ROOT / "docs" / "ctl-json.md"
SQL = 'SELECT * FROM "t"'
NOTHING = '[{"name": "do_nothing", "params": {}}]'
DISK = {"durability": {"level": "disk"}}
MOST_KEYS = 8
LOGGER = "taipan.broker.channel"

EXAMPLES: dict[str, list[str]] = {
    "status": [],
    "broker": [],
    "broker stats": [],
    "broker metrics": [],
    "vm": [],
    "vm <Group>": ["load"],
    "modules list": [],
    "modules load <Module>": ["emqx_mod_slow_subs"],
    "modules reload <Module>": ["emqx_mod_delayed"],
    "plugins list": [],
    "log set-level <Level> [<Logger>]": ["warning", LOGGER],
    "log primary-level [<Level>]": [],
    "log list": [],
    "log show [--level <Level>] [--count <N>] [--like <Text>]": [],
    "log handlers list": [],
    "log handlers set-level <HandlerId> <Level>": ["handler0", "debug"],
    "cluster status": [],
    "cluster replicas": [],
    "cluster join <Node>": ["taipan@127.0.0.1"],
    "cluster leave": [],
    "cluster evacuation start": [],
    "cluster evacuation status": [],
    "cluster evacuation stop": [],
    "cluster force-leave <Node> [--copies-lost]": ["other@127.0.0.1", "--copies-lost"],
    "clients list": [],
    "clients show <ClientId>": ["c"],
    "clients kick <ClientId>": ["kicked"],
    "subscriptions list": [],
    "subscriptions show <ClientId>": ["c"],
    "subscriptions add <ClientId> <Topic> <QoS>": ["c", "more", "1"],
    "subscriptions del <ClientId> <Topic>": ["c", "more"],
    "routes list": [],
    "routes show <Topic>": ["t/+"],
    "listeners": [],
    "listeners stop <Identifier>": ["LISTENER"],
    "listeners stop <Protocol> <Port>": ["mqtt:tcp", "PORT"],
    "listeners restart <Identifier>": ["LISTENER"],
    "retainer info": [],
    "retainer topics": [],
    "retainer clean [<Topic>]": ["kept"],
    "delayed list [--topic <Filter>] [--count <N>]": [],
    "delayed show <Id> [<Node>]": ["DELAYED"],
    "delayed del <Id> [<Node>]": ["DELAYED"],
    "topic-metrics add <Topic>": ["t/1"],
    "topic-metrics list": [],
    "topic-metrics show <Topic>": ["t/1"],
    "topic-metrics del <Topic>": ["t/1"],
    "slow-subs list": [],
    "slow-subs clean": [],
    "users add <Login> <Password> [<IsSuperuser>]": ["ann", "secret"],
    "users list": [],
    "users show <Login>": ["ann"],
    "users update <Login> <Password> [<IsSuperuser>]": ["ann", "other"],
    "users del <Login>": ["ann"],
    "mqtt-user add <Login> <Password> [<IsSuperuser>]": ["ann", "secret"],
    "mqtt-user list": [],
    "mqtt-user show <Login>": ["ann"],
    "mqtt-user update <Login> <Password> [<IsSuperuser>]": ["ann", "other"],
    "mqtt-user del <Login>": ["ann"],
    "user add <Username> <Password>": ["ann", "secret"],
    "user list": [],
    "user update <Username> <NewPassword>": ["ann", "other"],
    "user del <Username>": ["ann"],
    "clientid add <ClientId> <Password>": ["c9", "secret"],
    "clientid list": [],
    "clientid update <ClientId> <NewPassword>": ["c9", "other"],
    "clientid del <ClientId>": ["c9"],
    "acl add clientid <ClientId> <Topic> <Action> <Access>": ["c", "x", "pub", "allow"],
    "acl add username <Username> <Topic> <Action> <Access>": ["u", "x", "sub", "deny"],
    "acl add _anonymous <Topic> <Action> <Access>": ["x", "sub", "deny"],
    "acl add _all <Topic> <Action> <Access>": ["x", "sub", "deny"],
    "acl list [<Kind>]": [],
    "acl show clientid <ClientId>": ["c"],
    "acl show username <Username>": ["u"],
    "acl show _anonymous": [],
    "acl show _all": [],
    "acl del clientid <ClientId> <Topic>": ["c", "x"],
    "acl del username <Username> <Topic>": ["u", "x"],
    "acl del _anonymous <Topic>": ["x"],
    "acl del _all <Topic>": ["x"],
    "acl cache-clean <ClientId>": ["c"],
    "acl cache-clean node <Node>": ["NODE"],
    "mqtt-acl add <Login> <Topic> <Action> <Allow>": ["eve", "x", "pub", "true"],
    "mqtt-acl list": [],
    "mqtt-acl show <Login>": ["eve"],
    "mqtt-acl del <Login> <Topic>": ["eve", "x"],
    "banned add <As> <Who> [--reason <R>] [--seconds <S>] [--kick <Kick>]": ["clientid", "bad"],
    "banned list": [],
    "banned del <As> <Who>": ["clientid", "bad"],
    "mgmt insert <AppId> <Name> [--scopes <Scopes>]": ["exporter", "An exporter", "--scopes", "read"],
    "mgmt scopes <AppId> <Scopes>": ["exporter", "read,publish"],
    "mgmt list": [],
    "mgmt lookup <AppId>": ["exporter"],
    "mgmt update <AppId> <Status>": ["exporter", "false"],
    "mgmt delete <AppId>": ["exporter"],
    "admins add <Username> <Password> [<Tags>] [--role <Role>]": ["olga", "A secret, 9 of them"],
    "admins list": [],
    "admins passwd <Username> <Password>": ["olga", "Another secret, 9"],
    "admins role <Username> <Role>": ["olga", "operator"],
    "admins del <Username>": ["olga"],
    "access-sources list": [],
    "alarms list [<Which>]": [],
    "alarms deactivate <Name>": ["hot"],
    "alarms clean": [],
    "alarms targets": [],
    "alarms test <Target>": ["ops"],
    "silences add <Alarms> <Seconds> [--reason <Reason>]": ["disk", "60"],
    "silences list": [],
    "silences del <Id>": ["SILENCE"],
    "thresholds list": [],
    "thresholds set <Figure> <Value>": ["memory", "80"],
    "traces start <Name> <Type> <Value> [<Seconds>]": ["mine", "clientid", "c"],
    "traces list": [],
    "trace list": [],
    "traces stop <Name>": ["mine"],
    "traces delete <Name>": ["mine"],
    "trace start <Type> <Value> <Name> [--seconds <Seconds>]": ["client", "c", "again"],
    "trace stop <Type> <Value>": ["client", "c"],
    "audit list [--count <N>]": [],
    "annotate <Text> [--at <Time>]": ["Deploy 1.4"],
    "annotations list [--count <N>]": [],
    "annotations del <Id>": ["ANNOTATION"],
    "top list <List> [--limit <N>]": ["topics"],
    "explain client <ClientId>": ["c"],
    "explain delivery <ClientId> <Topic>": ["c", "t/1"],
    "explain topic <Topic>": ["t/1"],
    "publish <Topic> <Payload> [--qos <QoS>] [--retain] [--clientid <As>]": ["t/1", "x"],
    "watch <Filter> [--qos <QoS>] [--payload <Form>] [--count <N>]": ["t/#", "--count", "1"],
    "top [--interval <S>] [--count <N>] [--sort <Key>] [--below <Prefix>]": [
        "--interval", "1", "--count", "1",
    ],
    "rules create <SQL> <Actions> [-i <Id>] [-e <On>] [-g <Then>] [-d <D>]": [SQL, NOTHING, "-i", "rule:a"],
    "rules list": [],
    "rules show <RuleId>": ["rule:a"],
    "rules update <Id> [-s <SQL>] [-a <A>] [-e <On>] [-g <Then>] [-d <D>]": ["rule:a", "-d", "x"],
    "rules reset-metrics <RuleId>": ["rule:a"],
    "rules test <SQL> <Columns>": [SQL, '{"topic": "t", "payload": "1"}'],
    "rules trace <RuleId> [-n <Count>]": ["rule:a"],
    "rules delete <RuleId>": ["rule:a"],
    "rule-actions list": [],
    "rule-actions show <ActionName>": ["inspect"],
    "resources create <Type> [-i <Id>] [-c <Config>] [-d <Description>]": [
        "web_hook", "-i", "resource:a", "-c", '{"url": "http://127.0.0.1:9"}',
    ],
    "resources list [-t <ResourceType>]": [],
    "resources show <ResourceId>": ["resource:a"],
    "resources update <Id> [-c <Config>] [-d <Description>]": ["resource:a", "-d", "x"],
    "resources test <ResourceType> [-c <Config>]": ["web_hook", "-c", '{"url": "http://127.0.0.1:9"}'],
    "resources start <ResourceId>": ["resource:a"],
    "resources dead-letters <ResourceId>": ["resource:a"],
    "resources send-again <ResourceId> [-n <Number>]": ["resource:a"],
    "resources clear-dead-letters <ResourceId> [-n <Number>]": ["resource:a"],
    "resources delete <ResourceId>": ["resource:a"],
    "schemas create <Name> <ParserType> <Schema> [-d <Description>]": ["reading", "json", "{}"],
    "schemas list": [],
    "schemas show <Name>": ["reading"],
    "schemas delete <Name>": ["reading"],
    "resource-types list": [],
    "resource-types show <ResourceType>": ["web_hook"],
    "data export": [],
    "data import <File> [--env <JSON>] [--dry-run <Flag>]": ["EXPORT", "--dry-run", "true"],
    "backup create <File>": ["FILE"],
    "backup verify <File>": ["FILE"],
    "backup restore <File> [--data-dir <Dir>] [--force]": ["FILE", "--data-dir", "DIR"],
    "modules unload <Module>": ["emqx_mod_slow_subs"],
    "data loss": [],
    "data accept-loss": [],
    "help [<Command>]": [],
    "profiles": [],
}  # fmt: skip
"""Of each command its arguments, in an order in which they work."""
STATUS = "`running_nodes`, `stopped_nodes`"
EVACUATION = "`evacuating`, `connections`, `sessions`, `messages_for_others`, `kept`, `delayed`"
DONE = '`{"code":0}`'
REFUSED = {
    "cluster join <Node>": STATUS,
    "cluster leave": STATUS,
    "cluster evacuation start": EVACUATION,
    "cluster evacuation stop": EVACUATION,
    "cluster force-leave <Node> [--copies-lost]": STATUS,
    "resources test <ResourceType> [-c <Config>]": DONE,
    "resources start <ResourceId>": DONE,
}
"""Those that this node refuses, with a code and a message; and what they give where they are not."""
HERE = ("backup", "profiles")
"""Those that taipan-ctl does itself."""


def shape(value: Any) -> str:
    """What the page says of it."""
    if value == {"code": 0}:
        return DONE
    if isinstance(value, list):
        if not value:
            return "list"
        kinds = {type(each) for each in value}
        return f"list: {shape(value[0])}" if kinds == {dict} else "list of texts"
    if isinstance(value, dict):
        keys = [f"`{key}`" for key in value]
        return ", ".join(keys[:MOST_KEYS]) + (", …" if len(keys) > MOST_KEYS else "")
    return {str: "text", int: "number", bool: "true or false"}[type(value)]


def words_of(usage: str) -> list[str]:
    found = re.sub(r"[\[<].*", "", usage).split()
    return found


async def said(node: ManagedNode, usage: str, directory: Path, export: str) -> tuple[int, str]:
    listener = next(iter(node.server.listeners))
    values = {
        "LISTENER": node.management.operations.listeners.records()[0].identifier, "NODE": node.name,
        "PORT": str(listener.port), "FILE": str(directory / "backup"), "DIR": str(directory / "restored"),
        "EXPORT": export,
        "ANNOTATION": next((row.id for row in node.management.operations.annotations.listing(AnnotationsQuery())), ""),
        "SILENCE": next((row.id for row in node.management.operations.alarm_targets.silences()), ""),
        "DELAYED": next((row["id"] for row in (await node.api.get("/delayed")).data), ""),
    }  # fmt: skip
    if usage == "listeners stop <Protocol> <Port>":
        await ctl(node, "listeners", "restart", values["LISTENER"])
        values["PORT"] = str(listener.port)
    words = [*words_of(usage), *(values.get(each, each) for each in EXAMPLES[usage])]
    if usage.startswith(HERE):
        done = await run(
            "--json", *([] if "restore" in words else ["--data-dir", str(node.management.control.path.parent)]), *words,
            XDG_CONFIG_HOME=str(directory),
        )  # fmt: skip
        assert done.err == "", (usage, done)
        return done.status, done.out
    asked = asyncio.create_task(ctl(node, *words, as_json=True))
    if usage.startswith("watch"):
        await until(lambda: node.management.operations.live.count == 1)
        peer = await node.client("publisher", 5)
        await peer.publish("t/1", b"x")
        await peer.drop()
    done = await asked
    assert done.err == "", (usage, done)
    return done.status, done.out


@pytest.fixture
def level_of_the_logger() -> Iterator[None]:
    """What a command has set is for the process, and other tests read its log."""
    yield
    logging.getLogger(LOGGER).setLevel(logging.NOTSET)


@pytest.mark.asyncio
@pytest.mark.usefixtures("level_of_the_logger")
async def test_every_command_with_json(tmp_path: Path) -> None:
    assert sorted(EXAMPLES) == sorted(command.usage for command in COMMANDS)
    (tmp_path / "taipan").mkdir()
    profiles = tmp_path / "taipan" / "ctl.toml"
    profiles.write_text('[profiles.plant]\nurl = "https://h:8081"\napp = "a:b"\n')
    profiles.chmod(0o600)
    found: dict[str, str] = {}
    wrong: list[tuple[str, str]] = []
    data = {"node": {"data_dir": str(tmp_path / "data")}}
    async with managed_node(dashboard={}, zone={"allow_anonymous": True}, **data, **DISK) as node:
        peer = await node.client("c", 5)
        await peer.subscribe("t/+")
        await peer.publish("kept", b"x", retain=True)
        await peer.publish("$delayed/3600/t", b"x", qos=1)
        await node.client("kicked", 4)
        ring.add(["2026-10-01T14:03:11.000 WARNING taipan.broker.channel client_refused client_id=c reason=banned"])
        node.server.alarms.activate("hot", "it is hot")
        await node.management.operations.alarm_targets.add("ops", "mqtt", True, ["*"], {"topic": "ops"})
        export = ""
        for usage in EXAMPLES:
            status, out = await said(node, usage, tmp_path, export)
            value = json.loads(out)  # one document, whatever it is
            if status != int(usage in REFUSED):
                wrong.append((usage, out))
                continue
            if usage in REFUSED:
                assert set(value) == {"code", "message"}, usage
                found[usage] = REFUSED[usage]
            else:
                found[usage] = shape(value)
            if usage == "data export":
                export = str(node.management.operations.backup.files.path / value["filename"])
    assert wrong == []
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    missing = "\n".join(f"| `{name}` | {told} |" for name, told in found.items() if rows.get(name) != told)
    assert not missing, f"docs/ctl-json.md should have:\n{missing}"
    assert set(rows) == set(found)
