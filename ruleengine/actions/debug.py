"""``inspect`` and ``do_nothing``: actions for debugging a rule."""

import logging
from typing import Final

from ..event import Event
from ..functions.budget import Budget
from ..functions.values import encode_json
from ..params import Text
from .action import Action, ActionContext, ActionFailed, ActionType, Row

logger = logging.getLogger(__name__)

MAX_LOGGED_LENGTH: Final = 16_384


class Inspect:
    """Logs the result of a rule, all columns of the event and the action's parameters, at INFO."""

    def __init__(self, context: ActionContext) -> None:
        self._context = context

    def run(self, row: Row, event: Event) -> bool:
        context = self._context
        try:
            selected = encode_json(dict(row), Budget())
            columns = encode_json(dict(event.columns), Budget())
        except ValueError as error:
            raise ActionFailed(str(error)) from error
        logger.info(
            "rule_inspect rule=%s action=%s selected=%s columns=%s params=%s",
            context.rule_id,
            context.id,
            selected[:MAX_LOGGED_LENGTH],
            columns[:MAX_LOGGED_LENGTH],
            context.params,
        )
        return True

    def close(self) -> None:
        pass


class DoNothing:
    """Always succeeds."""

    def run(self, row: Row, event: Event) -> bool:
        return True

    def close(self) -> None:
        pass


def _do_nothing(context: ActionContext) -> Action:
    return DoNothing()


INSPECT: Final = ActionType(
    "inspect",
    Text("Inspect (debug)", "检查（调试）"),
    Text("Write the result and the event to the log", "将结果与事件写入日志"),
    Inspect,
    any_params=True,
    order=1,
)
DO_NOTHING: Final = ActionType(
    "do_nothing",
    Text("Do Nothing (debug)", "空动作（调试）"),
    Text("Count, and nothing else", "只计数，不做其他操作"),
    _do_nothing,
    order=2,
)
