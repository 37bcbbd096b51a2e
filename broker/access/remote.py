"""RemoteSource: a source of access on another system, which may be slow, broken or unreachable.

Common to all of them: the limit of open questions, the time-out, counting and logging of failures, and the end. Each
source itself asks the question, and raises SourceFailed if there is no answer."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Final, Literal

from .outside import DENY, IGNORE, OutsideSource, Verdict
from .source import Source, SourceContext

logger = logging.getLogger(__name__)

_LOG_INTERVAL: Final = 10.0


class SourceFailed(Exception):
    """``reason``: the reason for logs and counters. ``setting``: the setting that caused it; empty: the one of the
    question."""

    def __init__(self, reason: str, setting: str = "", detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.setting = setting
        self.detail = detail


class RemoteSource(Source, OutsideSource):
    """Belongs to one event loop. ``asked`` counts questions, ``failed`` those without an answer.

    A failure is logged as ``failed_event``, and counted as ``access_<name>_<reason>``; the verdict is then
    ``on_failure``."""

    failed_event: ClassVar[str]

    def __init__(
        self,
        name: str,
        context: SourceContext,
        *,
        timeout: float,
        most_open: int,
        most_open_setting: str,
        on_failure: Literal["deny", "ignore"],
    ) -> None:
        """``timeout``: seconds for a question. ``most_open``: maximum number of open questions, set by
        ``most_open_setting``."""
        super().__init__(name)
        self.asked = 0
        self.failed = 0
        self._context = context
        self._timeout = timeout
        self._most_open = most_open
        self._most_open_setting = most_open_setting
        self._on_failure = on_failure
        self._open = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None
        self._quiet_until = 0.0
        self._untold = 0

    async def ask(self, setting: str, question: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """Return the verdict of ``question``, or that of ``on_failure`` if there is no answer in time."""
        self.asked += 1
        if self._retired and self._open == 0:
            return self._failure("stopping", setting)
        if self._open >= self._most_open:
            return self._failure("busy", self._most_open_setting)
        self._open += 1
        try:
            async with asyncio.timeout(self._timeout):
                return await question()
        except SourceFailed as why:
            return self._failure(why.reason, why.setting or setting, why.detail)
        except TimeoutError:
            return self._failure("timeout", f"access.{self.name}.timeout")
        finally:
            self._open -= 1
            if self._retired and self._open == 0:
                self._close_later()

    def _failure(self, reason: str, setting: str, detail: str = "") -> Verdict:
        self.failed += 1
        self._context.count(f"access_{self.name}_{reason}")
        self._untold += 1
        now = self._context.clock.now()
        if now >= self._quiet_until:
            logger.warning(
                f"{self.failed_event} reason=%s setting=%s on_failure=%s count=%s detail=%s",
                reason,
                setting,
                self._on_failure,
                self._untold,
                detail,
            )
            self._untold = 0
            self._quiet_until = now + _LOG_INTERVAL
        decision = DENY if self._on_failure == "deny" else IGNORE
        return Verdict(decision, f"{self.name}_{reason}", setting)

    # ------------------------------------------------------------------- end

    @property
    def busy(self) -> bool:
        """Whether it still answers questions, or has connections to close."""
        return self._open > 0 or (self._closing is not None and not self._closing.done())

    def retire(self) -> None:
        """Another source replaces this one: open questions are still answered, then the connections are closed."""
        self._retired = True
        if self._open == 0:
            self._close_later()

    def _close_later(self) -> None:
        if self._closing is None:
            closing = self.close_connections()
            self._closing = None if closing is None else asyncio.ensure_future(closing)

    async def stop(self) -> None:
        """Close its connections now; open questions fail."""
        self._retired = True
        self._close_later()
        if self._closing is not None:
            await self._closing

    @abstractmethod
    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        """Return the function that closes the connections of this source; None: there are none."""
