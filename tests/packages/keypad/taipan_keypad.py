"""A source of access in a package of its own, for tests: who knows the code of a keypad comes in, and may open doors.

``away``: while it is set, the keypad gives no answer.
"""

from collections.abc import Coroutine
from functools import partial
from typing import Any, Literal

import msgspec

from taipan.broker.access.acl import asked_about, covers, filter_levels, intersects
from taipan.broker.access.auth_result import AuthOutcome
from taipan.broker.access.declaration import AccessSource
from taipan.broker.access.outside import ALLOW, DENY, IGNORE, Verdict
from taipan.broker.access.remote import RemoteSource, SourceFailed
from taipan.broker.access.source import SourceContext
from taipan.broker.mqtt import reason_codes
from taipan.broker.session.client_info import ClientInfo

away = False


class KeypadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``codes``: by username. ``doors``: by Topic Filter, whether it may be opened; the first that applies decides."""

    codes: dict[str, str]
    doors: dict[str, bool] = {}
    on_failure: Literal["deny", "ignore"] = "deny"


class KeypadSource(RemoteSource):
    failed_event = "access_keypad_failed"
    setting = "access.keypad.doors"
    title = "the keypad"

    def __init__(self, settings: KeypadSettings, context: SourceContext) -> None:
        super().__init__(
            "keypad",
            context,
            timeout=5.0,
            most_open=100,
            most_open_setting="access.keypad.codes",
            on_failure=settings.on_failure,
        )
        self._settings = settings
        self._doors = [(filter_levels(door), right) for door, right in settings.doors.items()]

    def authenticator(self) -> "KeypadSource":
        return self

    def authorizer(self) -> "KeypadSource | None":
        return self if self._settings.doors else None

    async def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        code = self._settings.codes.get(client.username or "")
        if code is None:
            return None
        verdict = await self.ask("access.keypad.codes", partial(self._answer, code.encode() == password))
        if verdict.failure:
            return AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail=verdict.failure, setting=verdict.setting)
        if not verdict.allowed:
            return AuthOutcome(reason_codes.BAD_USER_NAME_OR_PASSWORD, detail="wrong_code", setting=verdict.setting)
        return AuthOutcome(proved_by=self.name)

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        _, levels = asked_about(action == "publish", topic)
        found = (right for door, right in self._doors if (covers if right else intersects)(door, levels))
        return await self.ask(self.setting, partial(self._answer, next(found, None)))

    async def _answer(self, right: bool | None) -> Verdict:
        if away:
            raise SourceFailed("no_connection")
        return Verdict(IGNORE if right is None else ALLOW if right else DENY, "", self.setting)

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        return None


KEYPAD = AccessSource(
    name="keypad", settings=KeypadSettings, create=KeypadSource, shown=frozenset(["doors", "on_failure"])
)
