"""The action ``data_to_tdengine``: executes a statement for each row, or for a batch of rows."""

from functools import partial
from typing import Final

from ...actions.action import ActionType
from ...databases.quoted_sql_action import quoted_sql_action, quoted_sql_params
from ...params import Param, Text
from .resource import Tdengine

_PARAMS: Final = quoted_sql_params("backend_tdengine")

TYPE: Final = ActionType(
    "data_to_tdengine",
    Text("Data to TDengine", "保存数据到 TDengine"),
    Text("Write each row into a TDengine database", "将每条数据写入 TDengine 数据库"),
    partial(quoted_sql_action, Tdengine),
    (
        *_PARAMS,
        Param("db_name", max(each.order for each in _PARAMS) + 1, "string", Text("Database", "数据库"),
              Text("The database of tables without one; empty: each table of the statement has its database before it",
                   "语句中未指定数据库的表所在的数据库"), default=""),
    ),
    resource_types=("backend_tdengine",),
    category="data_persist",
    order=22,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
