"""Senders: one for each kind of target. ``send`` returns when the other side has taken the notice."""

import asyncio
import re
import smtplib
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from taipan.broker.observability.log_text import one_line
from taipan.broker.observability.masking import MASK, is_secret, mask_text
from taipan.broker.version import product_version
from taipan.ruleengine.network.allowed_networks import Networks, reason_of
from taipan.ruleengine.network.tls import client_context
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.http_headers import header_name
from taipan.ruleengine.resources.http_reply import HttpReply, outcome_of
from taipan.ruleengine.resources.resource import ResourceError

from .kinds import Config, EmailConfig, TopicConfig, WebHookConfig
from .mail import reply_of, send_mail
from .notice import Notice

TIMEOUT: Final = 30.0
"""Maximum number of seconds of one attempt."""
_CONNECT_TIMEOUT: Final = 10.0
_MAX_REPLY: Final = 4096
_SHORTEST_SECRET: Final = 4
"""Shorter texts are not masked in answers: they would occur anywhere."""
_BETWEEN_SECRETS: Final = re.compile(r"[\s/?&=#;:@,]+")
_SCHEMES: Final = frozenset({"basic", "bearer", "token"})

Publish = Callable[[str, bytes, int, bool], Awaitable[None]]
"""Publishes a message: topic, payload, QoS, retain."""


class NotSent(Exception):
    """The target has not taken a notice; the text is one line, without secrets."""


class NoticeSender(Protocol):
    """A target that notices can be sent to."""

    async def send(self, notice: Notice) -> str:
        """Send a notice. Return a warning, or "". Raises NotSent."""


def sender_of(config: Config, networks: Networks, publish: Publish) -> NoticeSender:
    """``networks``: the networks to which no target may connect. ``publish`` raises NotSent."""
    if isinstance(config, WebHookConfig):
        return _WebHook(config, networks)
    if isinstance(config, EmailConfig):
        return _Email(config, networks)
    return _Topic(config, publish)


class _WebHook:
    def __init__(self, config: WebHookConfig, networks: Networks) -> None:
        self._config = config
        self._networks = networks

    async def send(self, notice: Notice) -> str:
        from taipan.ruleengine.resources.http_client import HttpClient  # most nodes have no target, and need no client

        config = self._config
        headers = {"content-type": "application/json", "user-agent": f"taipan/{product_version()}"}
        headers |= {header_name("headers", name): value for name, value in config.headers.items()}
        try:
            tls = None
            if config.url.lower().startswith("https:"):
                # In a thread, because it reads files.
                given = {"verify": config.verify, "cacertfile": config.cacertfile}
                tls = await asyncio.to_thread(client_context, given)
            client = HttpClient(
                self._networks, 1, _CONNECT_TIMEOUT, TIMEOUT - _CONNECT_TIMEOUT, _MAX_REPLY, tls, keep_open=False
            )
            try:
                reply = await client.send("POST", config.url, headers, notice.body())
            finally:
                await client.close()
        except (ResourceError, ParamError) as error:
            raise NotSent(_without(str(error), _secrets_of(config))) from None
        shown = _without(reply.body.decode("utf-8", "replace"), _secrets_of(config))
        outcome = outcome_of(HttpReply(reply.status, shown.encode()))
        if outcome.reason:
            raise NotSent(outcome.reason)
        return ""


class _Email:
    def __init__(self, config: EmailConfig, networks: Networks) -> None:
        self._config = config
        self._networks = networks

    async def send(self, notice: Notice) -> str:
        try:
            return await send_mail(self._config, self._networks, notice, TIMEOUT)
        except smtplib.SMTPException as error:
            raise NotSent(_without(reply_of(error), {self._config.password})) from None
        except (OSError, ValueError) as error:  # all errors of ssl are OSErrors
            raise NotSent(_without(reason_of(error), {self._config.password})) from None


class _Topic:
    def __init__(self, config: TopicConfig, publish: Publish) -> None:
        self._config = config
        self._publish = publish

    async def send(self, notice: Notice) -> str:
        await self._publish(self._config.topic, notice.body(), self._config.qos, self._config.retain)
        return ""


def _secrets_of(config: WebHookConfig) -> set[str]:
    """Return the secrets of a web hook: the values of its headers, and the parts of its URL, that are masked."""
    shown = mask_text(config.url)
    secrets = {each for each in _BETWEEN_SECRETS.split(config.url) if each not in shown}
    for name, value in config.headers.items():
        if is_secret(name):
            secrets |= {value, *_BETWEEN_SECRETS.split(value)}
    return {each for each in secrets if each.lower() not in _SCHEMES}


def _without(text: str, secrets: set[str]) -> str:
    """Return the other side's answer in one line and without secrets: it may repeat the request."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return one_line(mask_text(text.strip()))
