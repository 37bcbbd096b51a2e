"""ExhookSource: providers of EMQX's exhook protocol decide who a client is, and what it may do.

A provider names its hooks when the node introduces itself. If it does not name ``client.authenticate`` or
``client.check_acl``, that question is left to the next provider, and then to the next source.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import msgspec

from ...session.client_info import ClientInfo
from ...setting_rules import Fault, check_url
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
_REST: Final = 2.0
"""After a failed introduction, questions do not begin another one for this many times as long as it took. In the
meantime, the other providers are asked without waiting for this one."""


class _Provider:
    """A provider, and the hooks that it has named."""

    def __init__(self, address: ProviderAddress, pool_size: int, node: str) -> None:
        """Raises ValueError for a file that cannot be used."""
        self.url = address.url
        self.client = ExhookClient(address, (pool_size + _STREAMS - 1) // _STREAMS, node)
        # None: none so far.
        self._wanted: frozenset[str] | None = None
        self._introducing = asyncio.Lock()
        # Why the last introduction has failed, and until when no question begins another.
        self._failure: ProviderFailed | None = None
        self._rests_until = 0.0
        # The hooks that were logged because none of them is a question.
        self._useless: frozenset[str] | None = None

    async def ask(self, hook: str, method: str, request: Any, settings: ExhookAccessSettings) -> Any:
        """Return the answer; None: the provider does not name this hook. Raises SourceFailed."""
        async with self._introducing:
            wanted = self._wanted if self.client.connected else None
            if wanted is None:
                if self._failure is not None and asyncio.get_running_loop().time() < self._rests_until:
                    raise _not_introduced(self._failure)
                wanted = await self._introduce(settings.connect_timeout)
        if hook not in wanted:
            return None
        try:
            return await self.client.call(method, request, settings.timeout)
        except ProviderFailed as why:
            if why.away:
                self._wanted = None  # the node introduces itself again to a provider that restarts
            raise _failed(why) from None

    async def connect(self, timeout: float) -> None:
        """Introduce the node to the provider, which names its hooks. Raises SourceFailed."""
        async with self._introducing:
            await self._introduce(timeout)

    async def _introduce(self, timeout: float) -> frozenset[str]:
        self._wanted = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._wanted = wanted = frozenset(await self.client.loaded(timeout))
        except ProviderFailed as why:
            now = loop.time()
            self._failure, self._rests_until = why.with_traceback(None), now + _REST * (now - began)
            raise _not_introduced(why) from None
        self._failure = None
        useless = wanted if wanted.isdisjoint((AUTHENTICATE, CHECK_ACL)) else None
        if useless is not None and useless != self._useless:
            detail = f"{self.url} names neither {AUTHENTICATE} nor {CHECK_ACL}: the next sources decide"
            logger.warning(
                "exhook_not_asked setting=%s hooks=%s detail=%r",
                ExhookSource.setting,
                ",".join(sorted(wanted)),
                detail,
            )
        self._useless = useless
        return wanted


class ExhookSource(RemoteSource):
    """Belongs to one event loop. The providers are asked in their order, until one of them decides."""

    setting = "access.exhook.url"
    title = "the exhook provider"
    without_decision = "the provider leaves it to the next source"

    def __init__(self, settings: ExhookAccessSettings, context: SourceContext) -> None:
        """Raises ValueError for a file that cannot be used."""
        addresses = _addresses(settings)
        whole = msgspec.structs.replace(settings, timeout=settings.timeout * len(addresses))  # each has the time-out
        super().__init__("exhook", whole, context)
        self._settings = settings
        self._providers = [_Provider(address, settings.pool_size, context.node) for address in addresses]

    def authenticator(self) -> "ExhookSource":
        return self

    def authorizer(self) -> "ExhookSource":
        return self

    # ------------------------------------------------------------- questions

    async def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        """Return whether the client's identity is accepted; None: the next source decides."""

        def request(result: bool) -> Any:
            info = messages.client_info(client, client.username, password)
            return messages.CLASSES["ClientAuthenticateRequest"](
                clientinfo=info, result=result, meta=messages.meta(client.node)
            )

        verdict = await self.ask(self.setting, lambda: self._decide(AUTHENTICATE, "OnClientAuthenticate", request))
        if verdict.decision != ALLOW:
            return self.not_let_in(verdict, client, password)
        return AuthOutcome(proved_by=self.name if client.username else "", proves_client_id=True)

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Return whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter."""

        def request(result: bool) -> Any:
            kind = messages.PUBLISH if action == "publish" else messages.SUBSCRIBE
            info = messages.client_info(client, client.user)
            return messages.CLASSES["ClientCheckAclRequest"](
                clientinfo=info, type=kind, topic=messages.text(topic), result=result, meta=messages.meta(client.node)
            )

        return await self.ask(self.setting, lambda: self._decide(CHECK_ACL, "OnClientCheckAcl", request))

    async def _decide(self, hook: str, method: str, request: Callable[[bool], Any]) -> Verdict:
        """``request`` creates the request with the result of the providers that were asked before."""
        result: bool | None = None
        failed = 0
        for provider in self._providers:
            try:
                reply = await provider.ask(hook, method, request(bool(result)), self._settings)
                answered = None if reply is None or reply.type == messages.IGNORE else result_of(reply)
            except SourceFailed as why:
                failed += 1
                if self._settings.on_failure == "deny" or failed == len(self._providers):
                    raise
                self._pass_over(provider, why)
                continue
            if answered is None:
                continue
            result = answered
            if reply.type == messages.STOP_AND_RETURN:
                return Verdict(ALLOW if result else DENY, "", self.setting)
        # CONTINUE leaves the result to those that follow: a denial is final, and a permission leaves it to the next
        # source.
        return Verdict(DENY if result is False else IGNORE, "", self.setting)

    async def connect(self) -> None:
        """Introduce the node to the providers, which name their hooks."""
        failures: list[tuple[_Provider, SourceFailed]] = []
        for provider in self._providers:
            try:
                await provider.connect(self._settings.connect_timeout)
            except SourceFailed as why:
                failures.append((provider, why))
        if failures and (self._settings.on_failure == "deny" or len(failures) == len(self._providers)):
            raise failures[0][1]
        for provider, failure in failures:
            self._pass_over(provider, failure)

    def _pass_over(self, provider: _Provider, why: SourceFailed) -> None:
        """Count and log a failure of one provider; the other providers decide."""
        self.note_failure(why.reason, why.setting or self.setting, f"{provider.url}: {why.detail}")

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        return self._close()

    async def _close(self) -> None:
        for provider in self._providers:
            await provider.client.close()


def _not_introduced(why: ProviderFailed) -> SourceFailed:
    return SourceFailed(NO_CONNECTION, detail=why.detail[:200], away=True) if why.away else _failed(why)


def _failed(why: ProviderFailed) -> SourceFailed:
    if why.reason == "deadline_exceeded":
        return SourceFailed("timeout", "access.exhook.timeout", why.detail, away=True)
    reason = NO_CONNECTION if why.away else "answered_" + why.reason
    return SourceFailed(reason, detail=why.detail[:200], away=why.away)


def result_of(reply: Any) -> bool:
    """Return the result of an answer. Raises SourceFailed for an answer without a value."""
    if reply.WhichOneof("value") != "bool_result":
        raise SourceFailed("bad_answer", detail="without bool_result")
    return bool(reply.bool_result)


def _addresses(settings: ExhookAccessSettings) -> list[ProviderAddress]:
    first = ProviderAddress(settings.url, settings.cacertfile, settings.certfile, settings.keyfile)
    return [first] + [ProviderAddress(each.url, each.cacertfile, each.certfile, each.keyfile) for each in settings.more]


def faults(settings: ExhookAccessSettings) -> Iterator[Fault]:
    """Yield the faults of the addresses and the files."""
    first, *more = _addresses(settings)
    for key, what in address_faults(first):
        yield Fault((key,), what)
    for number, address in enumerate(more):
        if not address.url:
            yield Fault(("more", number, "url"), "cannot be empty")
            continue
        try:
            check_url(address.url)
        except ValueError as error:
            yield Fault(("more", number, "url"), str(error))
            continue
        for key, what in address_faults(address):
            yield Fault(("more", number, key), what)
