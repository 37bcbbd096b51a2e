"""The settings of the rule engine and of its sinks: table ``[ruleengine]`` of the configuration file.

A sink with settings defines a struct for them, ``SETTINGS`` in ``settings.py`` of its directory."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from taipan.broker.config import Count, Natural, PositiveBytes, PositiveSeconds, Seconds

METADATA_NETWORKS: Final = (
    "169.254.0.0/16",  # link-local; the metadata service of nearly every cloud, with secrets, is at 169.254.169.254
    "fe80::/10",  # link-local
    "fd00:ec2::/64",  # Amazon
    "fd20:ce::254/128",  # Google
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure
)
"""Refused unless the configuration specifies other networks."""


class FunctionModule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Python module of the operator, ``[[ruleengine.functions]]``: importing it registers functions."""

    module: Annotated[str, Meta(min_length=1)]


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of actions and resources, and how long they try. Times are seconds."""

    # Whether rules see nothing of messages below $SYS
    ignore_sys_message: bool = True
    max_rules: Natural = 10_000
    max_resources: Natural = 1000
    # Limits of one evaluation of one rule: steps (an element of FOREACH costs ten), and bytes that it builds
    max_steps: Natural = 20_000
    max_output: PositiveBytes = 16_777_216
    # Seconds of processor time that all rules may use for one message or event, including the effects of their actions
    max_time: PositiveSeconds = 0.05
    # How often a message may be republished, and how many messages rules may make of republished ones for one event
    max_hops: Annotated[int, Meta(ge=1, le=20)] = 10
    max_chained: Natural = 1000
    # The same limit per second for all events together, not counting the first max_hops for each; 0: no limit
    max_chained_rate: Count = 5000
    # Addresses that no resource may connect to, whatever name leads there; [] for none
    refused_networks: tuple[str, ...] = METADATA_NETWORKS
    # Limits of rows that wait for one resource; if one is reached, actions fail immediately
    buffer_messages: Natural = 100_000
    buffer_bytes: PositiveBytes = 67_108_864
    # Between two attempts: doubled from the first to the longest, with jitter
    retry_backoff: PositiveSeconds = 0.5
    retry_backoff_max: PositiveSeconds = 30.0
    # After this number of attempts, a row that the other side refuses with an error of its own (HTTP 500) is given up
    retry_attempts: Natural = 3
    # Limits of rows and bytes for each resource: such rows are kept for an operator; 0 rows: none
    dead_letters: Count = 1000
    dead_letter_bytes: Natural = 16_777_216
    # After this number of failed attempts in a row nothing is sent for a while, then one attempt decides. Answers such
    # as HTTP 500 count once for each client.
    breaker_failures: Natural = 5
    breaker_pause: PositiveSeconds = 10.0
    # How long a row waits for others to share a request with
    batch_linger: Seconds = 0.01
    liveness_interval: PositiveSeconds = 10.0
    liveness_timeout: PositiveSeconds = 3.0
    # How long a resource that ends waits for what is on its way
    close_timeout: PositiveSeconds = 2.0
    max_reply_bytes: PositiveBytes = 1_048_576
    functions: tuple[FunctionModule, ...] = ()


HookEvent = Literal[
    "client.connect", "client.connack", "client.connected", "client.disconnected", "client.subscribe",
    "client.unsubscribe", "session.subscribed", "session.unsubscribed", "session.terminated", "message.publish",
    "message.delivered", "message.acked",
]  # fmt: skip


class WebHookRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An event that the web hook plugin sends."""

    event: HookEvent
    topic: str = ""  # a filter, for events with a topic; empty: every topic

    @property
    def has_topic(self) -> bool:
        """Whether the event has a topic."""
        return self.event.startswith("message.") or self.event.endswith("subscribe") or "subscribed" in self.event


class WebHookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The web hook plugin of EMQX: events as requests to an HTTP server. Times are seconds."""

    url: str = ""  # empty: nothing is sent
    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"content-type": "application/json"})
    encoding_of_payload_field: Literal["plain", "base62", "base64"] = "plain"
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""
    verify: bool = False
    server_name_indication: str = ""
    pool_size: Annotated[int, Meta(ge=1, le=256)] = 32  # connections, and requests at a time
    enable_pipelining: bool = True  # reuse connections
    connect_timeout: PositiveSeconds = 5.0
    request_timeout: PositiveSeconds = 5.0
    # What may wait; beyond it events are dropped
    max_queued: Natural = 10_000
    max_queued_bytes: PositiveBytes = 67_108_864
    rules: Annotated[list[WebHookRule], Meta(max_length=256)] = []


class ExhookServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider of EMQX's exhook protocol."""

    name: str
    url: str
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""


class ExhookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Events and questions about messages for providers of EMQX's exhook protocol. Times are seconds."""

    # What happens to a message if a provider gives no answer; ignore: the next provider is asked
    request_failed_action: Literal["deny", "ignore"] = "deny"
    request_timeout: PositiveSeconds = 5.0
    auto_reconnect: Seconds = 60.0  # between two attempts to reach a provider; 0: only one attempt
    pool_size: Annotated[int, Meta(ge=1, le=256)] = 4  # connections to each provider
    # What may wait for each provider, and messages for their answers; beyond it events are dropped, messages refused
    max_queued: Natural = 10_000
    max_queued_bytes: PositiveBytes = 67_108_864
    servers: Annotated[list[ExhookServer], Meta(max_length=16)] = []


Settings = TypeVar("Settings", bound=msgspec.Struct)


def settings_of(kind: type[Settings], settings: EngineSettings) -> Settings:
    """Return the settings of a sink from the settings of the node."""
    return kind(**{name: getattr(settings, name) for name in kind.__struct_fields__})


def settings_of_sinks() -> Iterator[type[msgspec.Struct]]:
    """Return the settings of each sink that has some."""
    sinks = Path(__file__).with_name("sinks")
    for folder in sorted(each.name for each in pkgutil.iter_modules([str(sinks)])):
        if any(each.name == "settings" for each in pkgutil.iter_modules([str(sinks / folder)])):
            yield import_module(f"{__package__}.sinks.{folder}.settings").SETTINGS


if TYPE_CHECKING:

    class RuleEngineSettings(EngineSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """The settings of the engine and of its sinks."""

else:
    RuleEngineSettings = msgspec.defstruct(
        "RuleEngineSettings",
        [
            (field.name, field.type, field.default)
            for kind in settings_of_sinks()
            for field in msgspec.structs.fields(kind)
        ],
        bases=(EngineSettings,),
        module=__name__,
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )
