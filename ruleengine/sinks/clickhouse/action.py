"""The action ``data_to_clickhouse``: executes a statement for each row, or for a batch of rows."""

from functools import partial
from typing import Final

from ...actions.action import ActionType
from ...databases.quoted_sql_action import quoted_sql_action, quoted_sql_params
from ...params import Text
from .resource import ClickHouse

TYPE: Final = ActionType(
    "data_to_clickhouse",
    Text("Data to ClickHouse", "保存数据到 ClickHouse"),
    Text("Write each row into a ClickHouse database", "将每条数据写入 ClickHouse 数据库"),
    partial(quoted_sql_action, ClickHouse),
    quoted_sql_params("backend_clickhouse"),
    resource_types=("backend_clickhouse",),
    category="data_persist",
    order=21,
)
ACTIONS: Final = (TYPE,)
