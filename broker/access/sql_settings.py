"""The settings and the declaration of a source that asks a database in SQL."""

from typing import Final

from ..setting_rules import parsed
from .database_settings import SHOWN, DatabaseSettings, address_of
from .declaration import AccessSource, SourceReason
from .emqx_plugin import COMMON_KEYS, EmqxKey, EmqxPlugin
from .sql_query import check_login_query

QUERIES: Final = ("auth_query", "super_query", "acl_query")


class SqlAccessSettings(DatabaseSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A query that is empty is not sent."""

    database: str = "mqtt"
    auth_query: str = "select password from mqtt_user where username = '%u' limit 1"
    super_query: str = "select is_superuser from mqtt_user where username = '%u' limit 1"
    acl_query: str = (
        "select allow, ipaddr, username, clientid, access, topic from mqtt_acl"
        " where ipaddr = '%a' or username = '%u' or username = '$all' or clientid = '%c'"
    )

    def texts(self) -> dict[str, str]:
        """Return the queries by the settings in ``QUERIES``."""
        return dict(zip(QUERIES, (self.auth_query, self.super_query, self.acl_query), strict=True))


def emqx_plugin(name: str, orders: tuple[str, ...], asks_next: bool = False) -> EmqxPlugin:
    """Return EMQX's plugin for a database. ``name``: EMQX's name for the database."""
    keys = {
        key: EmqxKey(key, "text") for key in ("server", "username", "password", "database", "password_hash", *QUERIES)
    }
    return EmqxPlugin(
        orders=orders,
        plugin=f"emqx_auth_{name}",
        prefix=f"auth.{name}.",
        module=f"{name}_authentication",
        keys={**COMMON_KEYS, **keys, "user": EmqxKey("username", "text")},
        absent={"username": "", **dict.fromkeys(QUERIES, ""), "tls_verify": False},
        asks_next=asks_next,
    )


def sql_access_source(
    name: str, place: int, settings: type[SqlAccessSettings], port: int, create: str, emqx: EmqxPlugin
) -> AccessSource:
    """Return the declaration of a database; the arguments are those of ``AccessSource``. ``port``: the default port,
    for a server without one in the settings."""
    return AccessSource(
        name=name,
        place=place,
        settings=settings,
        create=create,
        check="taipan.broker.access.sql_source:faults",
        extra=f"taipan-mqtt[{name}]",
        emqx=emqx,
        rules={
            "server": parsed(lambda text: address_of(text, port)),
            "auth_query": parsed(check_login_query, empty=True),
            "super_query": parsed(check_login_query, empty=True),
        },
        shown=SHOWN | {"auth_query"},
        reasons=(
            SourceReason(
                "client",
                "bad_username_or_password",
                (f"access.{name}.auth_query",),
                "the database has the user with another password, or without one",
            ),
            SourceReason(
                "client",
                "not_authorized",
                (f"access.{name}.auth_query",),
                "the client gave neither a username nor a password, and the database has a row for it",
            ),
            SourceReason(
                "message",
                "not_authorized",
                (f"access.{name}.acl_query",),
                "a row of the database denies it, or the database did not answer and on_failure is deny",
            ),
        ),
    )
