"""What ships in ``config/`` and ``docs/configuration.md`` says every key, with the defaults the code has."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.broker.config import (
    AccessSettings,
    AutoSubscribeSettings,
    AutoSubscribeTopic,
    ClusterSettings,
    DataSettings,
    DelayedSettings,
    DurabilitySettings,
    LimitsSettings,
    ListenerSettings,
    ListenerTlsSettings,
    NodeSettings,
    RetainedSettings,
    RewriteRule,
    RewriteSettings,
    RuleSettings,
    SharedSettings,
    SlowSubscriptionsSettings,
    StopSettings,
    SysTopicsSettings,
    UserSettings,
    ZoneSettings,
)
from taipan.management.configuration.config import DEFAULT_LISTENERS, TABLES, LogSettings, load
from taipan.management.configuration.openid import OpenIdSettings
from taipan.management.configuration.setting_notes import samples
from taipan.management.configuration.settings import AppSettings, DashboardSettings, HistorySettings, ManagementSettings
from taipan.ruleengine.config import (
    ExhookServer,
    ExhookSettings,
    FunctionModule,
    RuleEngineSettings,
    WebHookRule,
    WebHookSettings,
)

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "config" / "taipan.toml"
TEXT = SHIPPED.read_text("utf-8") + samples()
DOCUMENTED = {
    "`[node]`": NodeSettings,
    "`[log]`": LogSettings,
    "`[[listeners]]`": ListenerSettings,
    "`[listeners.tls]`": ListenerTlsSettings,
    "`[zones.NAME]`": ZoneSettings,
    "`[limits]`": LimitsSettings,
    "`[durability]`": DurabilitySettings,
    "`[data]`": DataSettings,
    "`[stop]`": StopSettings,
    "`[retained]`": RetainedSettings,
    "`[delayed]`": DelayedSettings,
    "`[rewrite]`": RewriteSettings,
    "`[[rewrite.rules]]`": RewriteRule,
    "`[auto_subscribe]`": AutoSubscribeSettings,
    "`[[auto_subscribe.topics]]`": AutoSubscribeTopic,
    "`[slow_subscriptions]`": SlowSubscriptionsSettings,
    "`[sys_topics]`": SysTopicsSettings,
    "`[shared]`": SharedSettings,
    "`[access]`": AccessSettings,
    "`[[access.users]]`": UserSettings,
    "`[[access.rules]]`": RuleSettings,
    **{f"`[access.{each.name}]`": each.settings for each in ACCESS_SOURCES if each.settings is not None},
    "`[cluster]`": ClusterSettings,
    "`[ruleengine]`": RuleEngineSettings,
    "`[[ruleengine.functions]]`": FunctionModule,
    "`[webhook]`": WebHookSettings,
    "`[[webhook.rules]]`": WebHookRule,
    "`[exhook]`": ExhookSettings,
    "`[[exhook.servers]]`": ExhookServer,
    "`[history]`": HistorySettings,
    "`[management]`": ManagementSettings,
    "`[[management.apps]]`": AppSettings,
    "`[dashboard]`": DashboardSettings,
    "`[dashboard.openid]`": OpenIdSettings,
}
FIELDS = [(title, field) for title, kind in DOCUMENTED.items() for field in msgspec.structs.fields(kind)]


def shipped(everything: bool = False) -> dict[str, Any]:
    """The shipped file with the samples; ``everything``: with the keys that are off switched on."""
    return tomllib.loads(re.sub(r"(?m)^#(?=[^\s#])", "", TEXT) if everything else TEXT)


def default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else msgspec.NODEFAULT


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def tables(document: dict[str, Any], title: str) -> list[dict[str, Any]]:
    """The tables of the shipped file that a heading of the reference is about."""
    if title == "`[listeners.tls]`":
        return [listener["tls"] for listener in document["listeners"] if "tls" in listener]
    found: Any = document
    for step in title.strip("`[]").replace("NAME", "external").split("."):
        found = found.get(step, [])
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("title, field", FIELDS, ids=[f"{title}.{field.name}" for title, field in FIELDS])
def test_every_key_ships(title: str, field: Any) -> None:
    everywhere = tables(shipped(everything=True), title)
    assert any(field.name in table for table in everywhere), "neither in config/taipan.toml nor in a sample.toml"
    for table in tables(shipped(), title):
        if (
            field.name in table
            and default(field) is not msgspec.NODEFAULT
            and not isinstance(table[field.name], list | dict)
        ):
            assert type(table[field.name]) is type(default(field))
            assert table[field.name] == default(field)


def test_shipped_file_is_the_default() -> None:
    assert load(str(SHIPPED), environ={}) == load(environ={})
    assert [{key: each[key] for key in ("name", "type", "bind")} for each in shipped()["listeners"]] == list(
        DEFAULT_LISTENERS
    )


def test_keys_that_are_off_would_be_taken(tmp_path: Path) -> None:
    everything = tmp_path / "everything.toml"
    everything.write_text(re.sub(r"(?m)^#(?=[^\s#])", "", TEXT), "utf-8")
    settings = load(str(everything), environ={}).broker
    assert [listener.type for listener in settings.listeners] == ["tcp", "ws", "unix", "ssl"]
    assert len(settings.access.users) == len(settings.access.rules) == 1


def reference(title: str) -> dict[str, tuple[str, str, str]]:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    found = re.search(rf"(?ms)^## {re.escape(title)}$(.*?)(?=^## |\Z)", text)
    assert found is not None, title
    rows = re.findall(r"(?m)^\| `(\w+)` \| (.+?) \| (`.*?`|\*none\*|needed) \| (.+) \|$", found[1])
    return {key: (kind, value, meaning) for key, kind, value, meaning in rows}


@pytest.mark.parametrize("title, field", FIELDS, ids=[f"{title}.{field.name}" for title, field in FIELDS])
def test_every_key_is_documented(title: str, field: Any) -> None:
    _, value, meaning = reference(title)[field.name]
    assert meaning.endswith((".", ")"))
    expected = default(field)
    if expected is msgspec.NODEFAULT:
        assert value == "needed"
    elif value == "*none*":
        assert not expected
    else:
        assert tomllib.loads(f"value = {value.strip('`')}")["value"] == plain(expected)


@pytest.mark.parametrize("title", DOCUMENTED)
def test_nothing_else_is_documented(title: str) -> None:
    assert list(reference(title)) and set(reference(title)) == set(DOCUMENTED[title].__struct_fields__)


def test_every_table_is_documented() -> None:
    assert {title.strip("`[]") for title in DOCUMENTED} >= set(TABLES)


@pytest.mark.parametrize("path", sorted((ROOT / "config" / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    load(str(path), environ={})


def test_paho_profile() -> None:
    """What the Eclipse Paho suites want to see."""
    settings = load(str(ROOT / "config" / "examples" / "paho-interop.toml"), environ={}).broker
    (rule,) = settings.access.rules
    assert (rule.allow, rule.action, rule.topics) == (False, "subscribe", ["eq test/nosubscribe"])
    for zone in settings.listener_zones:
        assert (zone.allow_anonymous, zone.server_keep_alive, zone.server_keep_alive_v3) == (True, 60, False)
        assert 10 <= zone.receive_maximum <= 100
        assert zone.max_outgoing_topic_alias > 0
        assert zone.suback_denied_code == 0x80


def test_the_quick_start_can_be_followed(tmp_path: Path) -> None:
    """What docs/quick-start.md adds and changes in the shipped file."""
    page = (ROOT / "docs" / "quick-start.md").read_text("utf-8")
    zone, listeners = re.findall(r"(?ms)^```toml\n(.*?)^```$", page)
    assert zone == "[zones.external]\nallow_anonymous = false\n"
    assert "`#allow_anonymous = true`" in page
    text = SHIPPED.read_text("utf-8").replace("\n#allow_anonymous = true\n", "\nallow_anonymous = false\n")
    user = '[[access.users]]\nusername = "ann"\n'
    file = tmp_path / "taipan.toml"
    file.write_text(text + user + listeners, "utf-8")
    settings = load(str(file), environ={}).broker
    assert [listener.type for listener in settings.listeners] == ["tcp", "ws", "ssl", "wss"]
    assert [zone.allow_anonymous for zone in settings.listener_zones] == [False] * 4
