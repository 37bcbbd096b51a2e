"""The declaration of ``[access.mysql]``: its settings, and what their values must be like."""

from typing import Final

from ...setting_rules import parsed
from ..database_settings import SHOWN, DatabaseSettings, address_of
from ..declaration import AccessSource, SourceReason
from ..sql_query import check_login_query


class MysqlAccessSettings(DatabaseSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A query that is empty is not asked."""

    server: str = "127.0.0.1:3306"
    database: str = "mqtt"
    auth_query: str = "select password from mqtt_user where username = '%u' limit 1"
    superuser_query: str = "select is_superuser from mqtt_user where username = '%u' limit 1"
    acl_query: str = (
        "select allow, ipaddr, username, clientid, access, topic from mqtt_acl"
        " where ipaddr = '%a' or username = '%u' or username = '$all' or clientid = '%c'"
    )


SOURCE: Final = AccessSource(
    name="mysql",
    place=6,
    settings=MysqlAccessSettings,
    create="taipan.broker.access.mysql.source:MysqlSource",
    check="taipan.broker.access.mysql.source:faults",
    extra="taipan-mqtt[mysql]",
    rules={
        "server": parsed(lambda text: address_of(text, 3306)),
        "auth_query": parsed(check_login_query, empty=True),
        "superuser_query": parsed(check_login_query, empty=True),
    },
    shown=SHOWN | {"auth_query"},
    reasons=(
        SourceReason(
            "client",
            "bad_username_or_password",
            ("access.mysql.auth_query",),
            "the database has the user with another password, or without one",
        ),
        SourceReason(
            "client",
            "not_authorized",
            ("access.mysql.auth_query",),
            "the client gave neither a username nor a password, and the database has a row for it",
        ),
        SourceReason(
            "message",
            "not_authorized",
            ("access.mysql.acl_query",),
            "a row of the database denies it, or the database did not answer and on_failure is deny",
        ),
    ),
)
