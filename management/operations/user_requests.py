"""UserRequests: requests for users with an idempotency key, so that a caller that stopped waiting can ask for the
result."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from .refusal import NO_USER, WRONG, Refusal

_KEPT: Final = 20
_KEPT_FOR: Final = 600.0
"""Number of completed requests, and seconds for which their answers are kept."""
_RUNNING: Final = 20
MAX_KEY_LENGTH: Final = 255


class UserRequest:
    """``digest``: digest of the request. ``done``: how many of ``users`` were created. ``answer``: set when the
    request is complete."""

    __slots__ = ("digest", "done", "ended", "task", "users")

    def __init__(self, digest: bytes, users: int) -> None:
        self.digest = digest
        self.users = users
        self.done = 0
        self.ended = 0.0
        self.task: asyncio.Task[object] | None = None

    def progress(self, done: int) -> None:
        self.done = done


class UserRequests:
    """Requests by their ``Idempotency-Key``."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, UserRequest] = OrderedDict()

    async def once(
        self, key: str, body: object, users: int, work: Callable[[Callable[[int], None]], Awaitable[object]]
    ) -> Any:
        """Do ``work``, or wait for the same request that is already running, or return its answer.

        The work continues if the caller disconnects."""
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise Refusal(WRONG, f"Idempotency-Key: expected 1 to {MAX_KEY_LENGTH} characters")
        self._forget()
        digest = hashlib.sha256(msgspec.json.encode(body)).digest()
        request = self._requests.get(key)
        if request is not None and request.digest != digest:
            raise Refusal(WRONG, "Idempotency-Key: already used with another body")
        if request is None:
            if sum(1 for each in self._requests.values() if not each.ended) >= _RUNNING:
                raise Refusal(WRONG, f"Idempotency-Key: {_RUNNING} such requests are already in progress")
            request = self._requests[key] = UserRequest(digest, users)
            request.task = asyncio.ensure_future(self._run(request, work))
        task = request.task
        assert task is not None
        return await asyncio.shield(task)

    def state(self, key: str) -> dict[str, Any]:
        """Return the state: ``state`` is ``running``, ``done`` or ``failed``; ``data``: the answer; ``message``: why it
        failed."""
        self._forget()
        request = self._requests.get(key)
        if request is None:
            raise Refusal(NO_USER, f"no request {key} in the last {_KEPT_FOR / 60:.0f} minutes")
        state: dict[str, object] = {"state": "running", "users": request.users, "done": request.done}
        task = request.task
        if task is not None and task.done():
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                state |= {"state": "done", "data": task.result()}
            else:
                state |= {"state": "failed", "message": str(error) or type(error).__name__}
        return state

    async def _run(self, request: UserRequest, work: Callable[[Callable[[int], None]], Awaitable[object]]) -> Any:
        try:
            return await work(request.progress)
        finally:
            request.ended = time.monotonic()

    def _forget(self) -> None:
        ended = [key for key, request in self._requests.items() if request.ended]
        now = time.monotonic()
        for place, key in enumerate(reversed(ended)):
            if place >= _KEPT or now - self._requests[key].ended > _KEPT_FOR:
                del self._requests[key]
