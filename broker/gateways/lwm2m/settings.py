"""The table ``gateway`` of an LwM2M listener: EMQX's settings ``lwm2m.*`` under their own names, and those of the CoAP
message layer."""

from functools import cached_property
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...mqtt.topics import matches, valid_filter, valid_name
from ..coap.settings import Transmission
from .objects import BadObjects, Objects, load
from .paths import BadPath, Path, parse
from .registration import Lifetimes

ENDPOINT: Final = "%e"
ADDRESS: Final = "%a"

Topic = Annotated[str, Meta(min_length=1, max_length=1024)]


class DeviceTopics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topics of a device, after the mountpoint."""

    command: Topic = "dn/#"
    response: Topic = "up/resp"
    notify: Topic = "up/notify"
    register: Topic = "up/resp"
    update: Topic = "up/resp"


class Lwm2mSettings(Transmission, frozen=True, forbid_unknown_fields=True, dict=True):
    """``mountpoint``: precedes all topics; ``%e`` is the endpoint name, ``%a`` the address. ``auto_observe``: whether
    all objects are observed, or the paths that are observed. ``username`` and ``password``: the credentials of every
    device, because a registration has none. Times are in seconds."""

    lifetime_min: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 1
    lifetime_max: Annotated[int, Meta(ge=1, le=4_294_967_295)] = 86_400
    qmode_time_window: Annotated[float, Meta(ge=0, le=86_400)] = 22.0
    auto_observe: bool | list[str] = False
    mountpoint: Annotated[str, Meta(max_length=1024)] = "lwm2m/%e/"
    topics: DeviceTopics = DeviceTopics()
    update_msg_publish_condition: Literal["contains_object_list", "always"] = "contains_object_list"
    xml_dir: str | None = None
    username: str | None = None
    password: str | None = None
    max_observations: Annotated[int, Meta(ge=0, le=10_000)] = 128
    max_queued_commands: Annotated[int, Meta(ge=0, le=100_000)] = 100
    max_queued_bytes: Annotated[int, Meta(ge=0)] = 262_144

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lifetime_min > self.lifetime_max:
            raise ValueError("lifetime_min: is larger than lifetime_max")
        if self.password is not None and self.username is None:
            raise ValueError("password: needs a username")
        self._check_topics()
        try:
            found = self.observed, self.objects
        except BadPath as error:
            raise ValueError(f"auto_observe: {error}") from None
        except BadObjects as error:
            raise ValueError(f"xml_dir: {error}") from None
        assert found

    def _check_topics(self) -> None:
        command = self.topic("command", "e", "a")
        if not valid_filter(command):
            raise ValueError(f"topics.command: {command[:100]!r} is not a topic filter")
        for name in ("response", "notify", "register", "update"):
            topic = self.topic(name, "e", "a")
            if not valid_name(topic):
                raise ValueError(f"topics.{name}: {topic[:100]!r} is not a topic name")
            if matches(command, topic):
                raise ValueError(f"topics.{name}: topics.command includes it: answers would be commands")

    def topic(self, name: str, endpoint: str, address: str) -> str:
        """Return one of ``topics`` of a device."""
        template: str = self.mountpoint + getattr(self.topics, name)
        before, *rest = template.split(ENDPOINT)
        parts = [before, *rest]
        return endpoint.join([part.replace(ADDRESS, address) for part in parts])

    @cached_property
    def objects(self) -> Objects:
        """The definitions of objects, for all devices of the listener."""
        return load(self.xml_dir)

    @cached_property
    def observed(self) -> tuple[Path, ...]:
        """The paths of ``auto_observe``."""
        if isinstance(self.auto_observe, bool):
            return ()
        return tuple([parse(path) for path in self.auto_observe])

    @property
    def limits(self) -> Lifetimes:
        """The lifetimes that are accepted."""
        return Lifetimes(self.lifetime_min, self.lifetime_max)
