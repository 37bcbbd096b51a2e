"""Functions of an embedding program as sources of authentication and authorization."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from .broker.access.acl import EVERYTHING, ReadRule
from .broker.access.auth_result import AuthOutcome
from .broker.access.decision import Decision
from .broker.access.outside import ALLOW, DENY, IGNORE, OutsideSource, Verdict
from .broker.mqtt import reason_codes
from .hooks import Action, is_async
from .message import Client

if TYPE_CHECKING:
    from .broker.access.control import AccessControl
    from .broker.session.client_info import ClientInfo

logger = logging.getLogger(__name__)

AuthAnswer = bool | Literal["superuser"] | None
"""True: allow; ``"superuser"``: allow, and no access rule applies; False: refuse; None: the next source decides."""
Authenticator = Callable[[Client, bytes | None], AuthAnswer | Awaitable[AuthAnswer]]
"""A function of the client and its password."""
Authorizer = Callable[[Client, Action, str], bool | Awaitable[bool | None] | None]
"""A function of the client, the action, and the Topic Name or Topic Filter. None: the next source decides."""

ALLOWED: Final = Decision(True, "-")
DENIED: Final = Decision(False, "-")
FAILED: Final = Decision(False, "-", lasting=False)

_numbers = itertools.count(1)


def _name(callback: object) -> str:
    """Return a unique name for a callback. By it, the node later identifies the source that proved a username."""
    return f"python:{getattr(callback, '__name__', type(callback).__name__)}:{next(_numbers)}"


class _Failures:
    """Log and count the exceptions of a callback. An exception refuses the request."""

    def __init__(self, event: str, name: str, count: Callable[[str], None]) -> None:
        self._event = event
        self._name = name
        self._count = count

    def add(self, error: BaseException) -> None:
        self._count(self._event)
        logger.error(f"{self._event} name=%s", self._name, exc_info=error)


class CallbackAuthenticator:
    """A callback as a source in the chain of ``broker.access.authentication``."""

    def __init__(self, callback: Authenticator, timeout: float, count: Callable[[str], None]) -> None:
        self.name = _name(callback)
        self._callback = callback
        self._timeout = timeout
        self._failures = _Failures("authenticator_failed", self.name, count)

    def authenticate(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthOutcome | Awaitable[AuthOutcome | None] | None:
        try:
            answer = self._callback(Client.of(client), password)
            if inspect.isawaitable(answer):
                return self._wait(client, password, answer)
            return self._outcome(client, password, answer)
        except Exception as error:
            return self._failed(error)

    async def _wait(
        self, client: ClientInfo, password: bytes | None, answer: Awaitable[AuthAnswer]
    ) -> AuthOutcome | None:
        try:
            async with asyncio.timeout(self._timeout):
                return self._outcome(client, password, await answer)
        except Exception as error:
            return self._failed(error)

    def _outcome(self, client: ClientInfo, password: bytes | None, answer: object) -> AuthOutcome | None:
        if answer is None:
            return None
        if answer is False:
            named = client.username or password is not None
            code = reason_codes.BAD_USER_NAME_OR_PASSWORD if named else reason_codes.NOT_AUTHORIZED
            return AuthOutcome(code, detail="denied by a callback of the program")
        if answer is not True and answer != "superuser":
            raise TypeError(f"expected True, False, None or 'superuser', got {answer!r}")
        client.proved_by = self.name if client.username else ""
        return AuthOutcome(is_superuser=answer == "superuser", proved_by=client.proved_by, proves_client_id=True)

    def _failed(self, error: Exception) -> AuthOutcome:
        self._failures.add(error)
        return AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail="a callback of the program failed")


class CallbackRules:
    """A plain callback as a source of ``broker.access.authorization``: it answers immediately."""

    has_rules: Final = True

    def __init__(self, callback: Authorizer, count: Callable[[str], None]) -> None:
        self.name = _name(callback)
        self._callback = callback
        self._failures = _Failures("authorizer_failed", self.name, count)

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        try:
            allowed = _allowed(self._callback(Client.of(client), _action(action), topic))
        except Exception as error:
            self._failures.add(error)
            return FAILED
        return None if allowed is None else ALLOWED if allowed else DENIED

    def read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        """Yield the decision of the callback about the whole filter, if it has one."""
        decision = self.decide(client, "subscribe", topic_filter)
        if decision is not None:
            yield decision.allowed, EVERYTHING


class CallbackService(OutsideSource):
    """An asynchronous callback as a source of ``broker.access.authorization``."""

    title = "a function of the program"

    def __init__(self, callback: Authorizer, timeout: float, count: Callable[[str], None]) -> None:
        self.name = _name(callback)
        self._callback = callback
        self._timeout = timeout
        self._failures = _Failures("authorizer_failed", self.name, count)

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        try:
            async with asyncio.timeout(self._timeout):
                answer = self._callback(Client.of(client), _action(action), topic)
                allowed = _allowed(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            self._failures.add(error)
            return Verdict(DENY, "a callback of the program failed", "-")
        return Verdict(IGNORE if allowed is None else ALLOW if allowed else DENY, "", "-")


def _action(action: str) -> Action:
    return "publish" if action == "publish" else "subscribe"


def _allowed(answer: object) -> bool | None:
    if answer is not None and not isinstance(answer, bool):
        if inspect.iscoroutine(answer):
            answer.close()
            raise TypeError("a plain function returned a coroutine: define it with async def")
        raise TypeError(f"expected True, False or None, got {answer!r}")
    return answer


def add_authenticator(
    access: AccessControl, callback: Authenticator, timeout: float, count: Callable[[str], None]
) -> None:
    if not callable(callback):
        raise TypeError(f"add_authenticator: expected a function, got {type(callback).__name__}")
    access.add(CallbackAuthenticator(callback, timeout, count))


def add_authorizer(access: AccessControl, callback: Authorizer, timeout: float, count: Callable[[str], None]) -> None:
    if not callable(callback):
        raise TypeError(f"add_authorizer: expected a function, got {type(callback).__name__}")
    access.add(CallbackService(callback, timeout, count) if is_async(callback) else CallbackRules(callback, count))
