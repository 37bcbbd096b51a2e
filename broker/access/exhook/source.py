"""ExhookSource: a provider of EMQX's exhook protocol decides who a client is, and what it may do.

The provider names its hooks when the node introduces itself. Of ``client.authenticate`` and
``client.check_acl``, those that it does not name are left to the next source.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any, Final

from ...session.client_info import ClientInfo
from ...setting_rules import Fault
from ..auth_result import AuthOutcome
from ..outside import ALLOW, DENY, IGNORE, Verdict
from ..remote import RemoteSource, SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from . import messages
from .client import ExhookClient, ProviderAddress, ProviderFailed, address_faults
from .declaration import ExhookAccessSettings

logger = logging.getLogger(__name__)

AUTHENTICATE: Final = "client.authenticate"
CHECK_ACL: Final = "client.check_acl"
_STREAMS: Final = 16
"""Questions at a time over one connection."""


class ExhookSource(RemoteSource):
    """Belongs to one event loop."""

    setting = "access.exhook.url"
    title = "the exhook provider"
    without_decision = "the provider leaves it to the next source"

    def __init__(self, settings: ExhookAccessSettings, context: SourceContext) -> None:
        """Raises ValueError for a file that cannot be used."""
        super().__init__("exhook", settings, context)
        self._settings = settings
        self._client = ExhookClient(_address(settings), (settings.pool_size + _STREAMS - 1) // _STREAMS, context.node)
        # The hooks that the provider has named; None: none so far.
        self._wanted: frozenset[str] | None = None
        self._introducing = asyncio.Lock()
        # The hooks that were logged because none of them is a question.
        self._useless: frozenset[str] | None = None

    def authenticator(self) -> "ExhookSource":
        return self

    def authorizer(self) -> "ExhookSource":
        return self

    # ------------------------------------------------------------- questions

    async def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        """Return whether the client is who it says; None: the next source decides."""

        def request() -> Any:
            info = messages.client_info(client, client.username, password)
            return messages.CLASSES["ClientAuthenticateRequest"](clientinfo=info, meta=messages.meta(client.node))

        verdict = await self.ask(self.setting, lambda: self._decide(AUTHENTICATE, "OnClientAuthenticate", request()))
        if verdict.decision != ALLOW:
            return self.not_let_in(verdict, client, password)
        return AuthOutcome(proved_by=self.name if client.username else "", proves_client_id=True)

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Return whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter."""

        def request() -> Any:
            kind = messages.PUBLISH if action == "publish" else messages.SUBSCRIBE
            info = messages.client_info(client, client.user)
            return messages.CLASSES["ClientCheckAclRequest"](
                clientinfo=info, type=kind, topic=messages.text(topic), meta=messages.meta(client.node)
            )

        return await self.ask(self.setting, lambda: self._decide(CHECK_ACL, "OnClientCheckAcl", request()))

    async def _decide(self, hook: str, method: str, request: Any) -> Verdict:
        async with self._introducing:
            wanted = self._wanted if self._client.connected else None
            if wanted is None:
                wanted = await self._introduce()
        if hook not in wanted:
            return Verdict(IGNORE, "", self.setting)
        try:
            reply = await self._client.call(method, request, self._settings.timeout)
        except ProviderFailed as why:
            if why.away:
                self._wanted = None  # a provider that starts again is told again of the node
            raise self._failed(why) from None
        return Verdict(decision_of(reply), "", self.setting)

    def _failed(self, why: ProviderFailed) -> SourceFailed:
        if why.reason == "deadline_exceeded":
            return SourceFailed("timeout", "access.exhook.timeout", why.detail, away=True)
        reason = NO_CONNECTION if why.away else "answered_" + why.reason
        return SourceFailed(reason, detail=why.detail[:200], away=why.away)

    async def connect(self) -> None:
        """Introduce the node to the provider, which names its hooks."""
        async with self._introducing:
            await self._introduce()

    async def _introduce(self) -> frozenset[str]:
        self._wanted = None
        try:
            self._wanted = wanted = frozenset(await self._client.loaded(self._settings.connect_timeout))
        except ProviderFailed as why:
            if why.away:
                raise SourceFailed(NO_CONNECTION, detail=why.detail[:200], away=True) from None
            raise self._failed(why) from None
        useless = wanted if wanted.isdisjoint((AUTHENTICATE, CHECK_ACL)) else None
        if useless is not None and useless != self._useless:
            detail = f"the provider names neither {AUTHENTICATE} nor {CHECK_ACL}: the next sources decide"
            logger.warning(
                "exhook_not_asked setting=%s hooks=%s detail=%r", self.setting, ",".join(sorted(wanted)), detail
            )
        self._useless = useless
        return wanted

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        return self._client.close()


def decision_of(reply: Any) -> str:
    """Return the decision of an answer. CONTINUE leaves the result to those that follow: so a denial
    is final, and a permission leaves it to the next source. Raises SourceFailed for an answer without a value."""
    if reply.type == messages.IGNORE:
        return IGNORE
    if reply.WhichOneof("value") != "bool_result":
        raise SourceFailed("bad_answer", detail="without bool_result")
    if not reply.bool_result:
        return DENY
    return ALLOW if reply.type == messages.STOP_AND_RETURN else IGNORE


def _address(settings: ExhookAccessSettings) -> ProviderAddress:
    return ProviderAddress(settings.url, settings.cacertfile, settings.certfile, settings.keyfile)


def faults(settings: ExhookAccessSettings) -> Iterator[Fault]:
    """Yield the faults of the address and the files."""
    for key, what in address_faults(_address(settings)):
        yield Fault((key,), what)
