"""The declaration of ``[access.mysql]``."""

from typing import Final

from ..sql_settings import SqlAccessSettings, emqx_plugin, sql_access_source


class MysqlAccessSettings(SqlAccessSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table ``[access.mysql]``."""

    server: str = "127.0.0.1:3306"


SOURCE: Final = sql_access_source(
    "mysql",
    6,
    MysqlAccessSettings,
    3306,
    "taipan.broker.access.mysql.source:MysqlSource",
    emqx_plugin("mysql", ("mysql",)),
)
