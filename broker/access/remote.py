"""RemoteSource: a source of access on another system, which may be slow, broken or unreachable.

This module has the parts that all remote sources share: the limits of open questions and of their wait, the time-out,
the circuit breaker, the status and its alarm, counting and logging of failures, and the end. Each source itself
connects, asks the question, and closes its connections.

At most ``pool_size`` questions are asked at a time. Only these can fail because of the other side. The wait of further
questions for their turn is not a failure of the other side, and has its own limit."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Final

from ..loop.answer_limit import answer_within
from ..mqtt import reason_codes
from ..session.client_info import ClientInfo, protocol_of
from .auth_result import AuthOutcome
from .declaration import RemoteSettings
from .outside import DENY, IGNORE, OutsideSource, Verdict
from .remote_status import OPEN, RemoteStatus
from .source import Source, SourceContext

logger = logging.getLogger(__name__)

_LOG_INTERVAL: Final = 10.0


class SourceFailed(Exception):
    """``reason``: the word for logs and counters; ``NO_CONNECTION`` if a connection cannot be established. ``setting``:
    the setting that decided; empty: the setting of the question. ``away``: the other side gave no answer at all, as if
    it were unreachable."""

    def __init__(self, reason: str, setting: str = "", detail: str = "", away: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.setting = setting
        self.detail = detail
        self.away = away


class RemoteSource(Source, OutsideSource):
    """Belongs to one event loop. ``status``: whether it answers, and its counters.

    A failure is logged as ``access_source_failed``, and counted as ``access_<name>_<reason>``; the verdict is that of
    ``on_failure``.
    """

    waiting_per_connection: ClassVar[int] = 256

    def __init__(self, name: str, settings: RemoteSettings, context: SourceContext) -> None:
        super().__init__(name)
        self.status = RemoteStatus(context.clock, lambda: context.status_changed(self))
        self._context = context
        self._limits = settings
        self._most_open = settings.pool_size * self.waiting_per_connection
        self._open = 0
        self._turns = asyncio.Semaphore(settings.pool_size)
        self._retired = False
        self._stopped = False
        self._closing: asyncio.Task[None] | None = None
        self._reaching: asyncio.Task[None] | None = None
        self._quiet_until = 0.0
        self._untold = 0

    # ----------------------------------------------------------- of a source

    @abstractmethod
    async def connect(self) -> None:
        """Check whether the other side can be reached, without a question about a client. Raises SourceFailed. It is
        called at the start, for ``taipan check --connect``, and while the other side is unreachable."""

    @abstractmethod
    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that closes the connections of this source; None: there are none."""

    # ------------------------------------------------------------- questions

    async def ask(self, setting: str, question: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """Return the verdict of ``question``, or that of ``on_failure`` if there is no answer in time."""
        status = self.status
        status.asked += 1
        if self._retired and self._open == 0:
            return self._failure("stopping", setting)
        if status.breaker_blocks:
            return self._failure("down", setting, status.reason)
        if self._open >= self._most_open:
            return self._failure("busy", f"access.{self.name}.pool_size")
        self._open += 1
        try:
            if not await self._has_turn():
                return self._failure("busy", f"access.{self.name}.wait_timeout")
            try:
                return await self._answer_of(setting, question)
            finally:
                self._turns.release()
        finally:
            self._open -= 1
            if self._retired and self._open == 0:
                self._close_later()

    async def _has_turn(self) -> bool:
        """Wait until a question may be asked; return whether that was in time."""
        if not self._turns.locked():
            await self._turns.acquire()
            return True
        try:
            async with answer_within(self._limits.wait_timeout):
                await self._turns.acquire()
        except TimeoutError:
            return False
        return True

    async def _answer_of(self, setting: str, question: Callable[[], Awaitable[Verdict]]) -> Verdict:
        status = self.status
        # Both may have changed while the question waited.
        if self._stopped:
            return self._failure("stopping", setting)
        if status.breaker_blocks:
            return self._failure("down", setting, status.reason)
        begun = asyncio.get_running_loop().time()
        try:
            async with answer_within(self._limits.timeout):
                verdict = await question()
        except SourceFailed as why:
            if why.away:
                self._missed(why.reason, why.detail)
            else:
                status.replied()
            return self._failure(why.reason, why.setting or setting, why.detail)
        except TimeoutError:
            self._missed("timeout")
            return self._failure("timeout", f"access.{self.name}.timeout")
        except Exception as error:
            # The source may be of a package of others; a client that it cannot judge is judged by ``on_failure``.
            logger.exception("access_source_failed source=%s reason=error", self.name)
            return self._failure("error", setting, type(error).__name__)
        else:
            status.answered(verdict.decision, asyncio.get_running_loop().time() - begun)
            return verdict

    def facts(self, client: ClientInfo, username: str | None) -> dict[str, str]:
        """Return the values of placeholders, without password, action and topic. ``username``: the name that the client
        claims, if that is to be verified, otherwise the name that it has proved."""
        return {
            "u": username or "",
            "c": client.client_id,
            "a": client.peer_host,
            "r": protocol_of(client),
            "p": str(client.sock_port),
            "C": client.cn or "",
            "d": client.dn or "",
            "m": client.mountpoint,
        }

    def not_let_in(self, verdict: Verdict, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        """Return how a verdict that does not admit the client affects its CONNECT, or ``None`` if the next source is
        asked."""
        if verdict.decision == IGNORE:
            return None
        if verdict.failure:
            return AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail=verdict.failure, setting=verdict.setting)
        named = client.username or password is not None
        code = reason_codes.BAD_USER_NAME_OR_PASSWORD if named else reason_codes.NOT_AUTHORIZED
        return AuthOutcome(code, detail="denied", setting=verdict.setting)

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Leave the decision to the next source. A source that authorizes overrides this method, and ``authorizer``
        returns the source."""
        return Verdict(IGNORE, "", self.setting)

    @property
    def under_way(self) -> int:
        """The number of questions that wait for an answer."""
        return self._open

    def _missed(self, reason: str, detail: str = "") -> None:
        """Note a question without an answer, and check whether the other side can be reached."""
        self.status.missed(reason, detail)
        if not self._retired and (self._reaching is None or self._reaching.done()):
            self._reaching = asyncio.ensure_future(self._reach())

    def _failure(self, reason: str, setting: str, detail: str = "") -> Verdict:
        self.status.failed += 1
        self.note_failure(reason, setting, detail)
        decision = DENY if self._limits.on_failure == "deny" else IGNORE
        return Verdict(decision, f"{self.name}_{reason}", setting)

    def note_failure(self, reason: str, setting: str, detail: str) -> None:
        """Count and log a failure."""
        self._context.count(f"access_{self.name}_{reason}")
        self._untold += 1
        now = self._context.clock.now()
        if now >= self._quiet_until:
            logger.warning(
                "access_source_failed source=%s reason=%s setting=%s on_failure=%s count=%s detail=%s",
                self.name,
                reason,
                setting,
                self._limits.on_failure,
                self._untold,
                detail,
            )
            self._untold = 0
            self._quiet_until = now + _LOG_INTERVAL

    # ---------------------------------------------------------------- status

    async def try_connection(self) -> None:
        """Call ``connect``, within the time-out. Raises SourceFailed, whatever a source raises."""
        try:
            async with answer_within(self._limits.timeout):
                await self.connect()
        except SourceFailed:
            raise
        except TimeoutError:
            raise SourceFailed("timeout", f"access.{self.name}.timeout") from None
        except Exception as error:
            logger.exception("access_source_failed source=%s reason=error", self.name)
            raise SourceFailed("error", detail=type(error).__name__) from error

    async def _reach(self) -> None:
        """Try to connect until that succeeds, at increasing intervals. If the breaker is open, wait before the first
        attempt."""
        status = self.status
        pause = status.breaker == OPEN
        while True:
            if pause:
                await asyncio.sleep(status.next_pause())
            pause = True
            status.half_open()
            try:
                await self.try_connection()
            except SourceFailed as why:
                status.unreachable(why.reason, why.detail)
            else:
                status.reachable()
                return

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Connect in the background."""
        self._reaching = asyncio.ensure_future(self._reach())

    def halt(self) -> None:
        if self._reaching is not None:
            self._reaching.cancel()

    @property
    def busy(self) -> bool:
        """Whether the source still answers questions, or has connections to close."""
        return self._open > 0 or any(task is not None and not task.done() for task in (self._reaching, self._closing))

    def retire(self) -> None:
        """Answer the open questions, then close the connections, because another source replaces this one."""
        self.halt()
        self._retired = True
        if self._open == 0:
            self._close_later()

    def _close_later(self) -> None:
        if self._closing is None:
            closing = self.close_connections()
            self._closing = None if closing is None else asyncio.ensure_future(closing)

    async def stop(self) -> None:
        """Close the connections now; open questions fail. No connection is opened afterwards."""
        self.halt()
        self._retired = self._stopped = True
        self._close_later()
        if self._reaching is not None:
            await asyncio.wait([self._reaching])
        if self._closing is not None:
            await self._closing
