"""The declaration of ``[access.redis]``: its settings, and the requirements for their values."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from ...setting_rules import parsed
from ..database_settings import SHOWN, DatabaseSettings, address_of
from ..declaration import AccessSource, SourceReason
from ..emqx_plugin import COMMON_KEYS, EmqxKey, EmqxPlugin
from .command import check_acl_command, check_login_command


class RedisAccessSettings(DatabaseSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command that is empty is not asked."""

    type: Literal["single", "sentinel", "cluster"] = "single"
    server: str = "127.0.0.1:6379"  # with commas: sentinels, or nodes of a cluster
    sentinel: str = ""  # the name of the master
    database: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    password_hash: str = "plain"
    auth_cmd: str = "HMGET mqtt_user:%u password"
    super_cmd: str = "HGET mqtt_user:%u is_superuser"
    acl_cmd: str = "HGETALL mqtt_acl:%u"


def _addresses(text: str, port: int) -> list[tuple[str, int]]:
    """Return the hosts and ports in a list separated by commas. Raises ``ValueError``."""
    return [address_of(each, port) for each in text.split(",")]


def addresses_of(settings: RedisAccessSettings) -> list[tuple[str, int]]:
    """Return the addresses of ``server``: of the server, of the sentinels, or of nodes of the cluster."""
    return _addresses(settings.server, 26_379 if settings.type == "sentinel" else 6379)


SOURCE: Final = AccessSource(
    name="redis",
    place=7,
    settings=RedisAccessSettings,
    create="taipan.broker.access.redis.source:RedisSource",
    check="taipan.broker.access.redis.source:faults",
    extra="taipan-mqtt[redis]",
    emqx=EmqxPlugin(
        orders=("redis",),
        plugin="emqx_auth_redis",
        prefix="auth.redis.",
        module="redis_authentication",
        keys={
            **COMMON_KEYS,
            **{
                key: EmqxKey(key, "text")
                for key in (
                    "type",
                    "server",
                    "sentinel",
                    "password",
                    "password_hash",
                    "auth_cmd",
                    "super_cmd",
                    "acl_cmd",
                )
            },
            "database": EmqxKey("database", "number"),
        },
        absent={"auth_cmd": "", "super_cmd": "", "acl_cmd": "", "tls_verify": False},
        asks_next=True,
        used_with={"sentinel": ("type", ("sentinel",)), "database": ("type", ("single", "sentinel"))},
    ),
    rules={
        "server": parsed(lambda text: _addresses(text, 6379)),
        "auth_cmd": parsed(check_login_command, empty=True),
        "super_cmd": parsed(check_login_command, empty=True),
        "acl_cmd": parsed(check_acl_command, empty=True),
    },
    shown=SHOWN | {"auth_cmd"},
    reasons=(
        SourceReason(
            "client",
            "bad_username_or_password",
            ("access.redis.auth_cmd",),
            "Redis has the user with another password, or without one",
        ),
        SourceReason(
            "client",
            "not_authorized",
            ("access.redis.auth_cmd",),
            "the client gave neither a username nor a password, and Redis has a password for it",
        ),
        SourceReason(
            "message",
            "not_authorized",
            ("access.redis.acl_cmd",),
            "Redis has a list of topics for the client and this is not one of them, or it did not answer and "
            "on_failure is deny",
        ),
    ),
)
