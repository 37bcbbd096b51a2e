"""The kinds of targets and their configurations, with what each of them refuses."""

import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from taipan.broker.mqtt.topics import valid_name
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.http_headers import header_name, header_value

Kind = Literal["webhook", "email", "mqtt"]

_MAX_HEADERS: Final = 50
_ADDRESS: Final = re.compile(r"[^\s<>(),:;\"\\@]+@[^\s<>(),:;\"\\@]+")
_ShortText = Annotated[str, Meta(max_length=1024)]
_Address = Annotated[str, Meta(max_length=254)]


class WebHookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A POST of JSON for each notice. ``verify``: whether an invalid certificate is refused. ``cacertfile``: PEM file
    of authorities; empty: those of the system."""

    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    headers: dict[_ShortText, Annotated[str, Meta(max_length=4096)]] = {}
    verify: bool = True
    cacertfile: _ShortText = ""


class EmailConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An email for each notice. ``security``: ``tls`` from the first byte (port 465), ``starttls`` (587), or ``none``
    (25). ``sender`` and ``recipients``: addresses such as ``ops@example.com``."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: _ShortText = ""
    password: _ShortText = ""
    sender: _Address
    recipients: Annotated[list[_Address], Meta(min_length=1, max_length=50)]
    verify: bool = True
    cacertfile: _ShortText = ""


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message of JSON for each notice, published by the node."""

    topic: str
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False


Config = WebHookConfig | EmailConfig | TopicConfig
KINDS: Final[dict[Kind, type[Config]]] = {"webhook": WebHookConfig, "email": EmailConfig, "mqtt": TopicConfig}


class WrongConfig(ValueError):
    """A configuration that cannot be used; the text names the field."""


def check(config: Config) -> None:
    """Check what the types cannot express. Raises WrongConfig."""
    if isinstance(config, WebHookConfig):
        _check_web_hook(config)
    elif isinstance(config, EmailConfig):
        _check_email(config)
    elif not valid_name(config.topic) or config.topic.startswith("$"):
        raise WrongConfig("topic: expected a Topic Name without wildcards that does not begin with $")


def _check_web_hook(config: WebHookConfig) -> None:
    try:
        parts = urlsplit(config.url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong or any(ord(each) <= 32 for each in config.url):
        raise WrongConfig("url: expected http:// or https:// and a host")
    if parts.username is not None:
        raise WrongConfig("url: put credentials into an authorization header")
    if len(config.headers) > _MAX_HEADERS:
        raise WrongConfig(f"headers: at most {_MAX_HEADERS}")
    try:
        for name, value in config.headers.items():
            header_name("headers", name)
            header_value("headers", value)
    except ParamError as error:
        raise WrongConfig(str(error)) from None


def _check_email(config: EmailConfig) -> None:
    if any(ord(each) <= 32 or each in "/@" for each in config.host):
        raise WrongConfig("host: expected a hostname or an IP address")
    for key, address in (("sender", config.sender), *(("recipients", each) for each in config.recipients)):
        if not (_ADDRESS.fullmatch(address) and address.isprintable()):
            raise WrongConfig(f"{key}: {address[:100]!r} is not an email address")
    if config.password and config.security == "none":
        raise WrongConfig(
            "password: without TLS it would cross the network in clear text: use security tls or starttls"
        )
    if not (config.username.isascii() and config.password.isascii()):
        raise WrongConfig("password: username and password must be ASCII")
    if bool(config.password) != bool(config.username):
        raise WrongConfig("password: username and password must be set together")
