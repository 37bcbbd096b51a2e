"""A source of access in a package of its own, for tests: who knows the code of a keypad comes in, and may open doors.

``away``: while it is set, as by ``KEYPAD_AWAY`` in the environment, the keypad cannot be reached.
"""

import os
from collections.abc import Coroutine
from functools import partial
from typing import Any

from taipan.broker.access.acl import asked_about, covers, filter_levels, intersects
from taipan.broker.access.auth_result import AuthOutcome
from taipan.broker.access.declaration import AccessSource, RemoteSettings
from taipan.broker.access.outside import ALLOW, DENY, IGNORE, Verdict
from taipan.broker.access.remote import RemoteSource, SourceFailed
from taipan.broker.access.source import SourceContext
from taipan.broker.session.client_info import ClientInfo

away = "KEYPAD_AWAY" in os.environ


class KeypadSettings(RemoteSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``codes``: by username. ``doors``: by Topic Filter, whether it may be opened; the first that applies decides."""

    codes: dict[str, str]
    doors: dict[str, bool] = {}


class KeypadSource(RemoteSource):
    setting = "access.keypad.doors"
    title = "the keypad"

    def __init__(self, settings: KeypadSettings, context: SourceContext) -> None:
        super().__init__("keypad", settings, context)
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
        if not verdict.allowed:
            return self.not_let_in(verdict, client, password)
        return AuthOutcome(proved_by=self.name)

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        _, levels = asked_about(action == "publish", topic)
        found = (right for door, right in self._doors if (covers if right else intersects)(door, levels))
        return await self.ask(self.setting, partial(self._answer, next(found, None)))

    async def connect(self) -> None:
        if away:
            raise SourceFailed("no_connection", detail="the keypad is unplugged", away=True)

    async def _answer(self, right: bool | None) -> Verdict:
        await self.connect()
        return Verdict(IGNORE if right is None else ALLOW if right else DENY, "", self.setting)

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        return None


KEYPAD = AccessSource(name="keypad", settings=KeypadSettings, create=KeypadSource, shown=frozenset(["doors"]))
