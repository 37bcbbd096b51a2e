"""ExhookClient: the connections to one provider, a gRPC server, and its calls."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import grpc
import grpc.aio

from ...loop.regular_file import MAX_CREDENTIALS, check_regular
from ...mqtt.constants import MAX_REMAINING_LENGTH
from .messages import CLASSES, SERVICE, broker_info, meta

_METHODS: Final = {
    each.name: each for each in CLASSES["LoadedResponse"].DESCRIPTOR.file.services_by_name["HookProvider"].methods
}
_AWAY: Final = frozenset([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    # An answer contains the message, of up to the largest packet; the default is 4 MiB.
    ("grpc.max_receive_message_length", MAX_REMAINING_LENGTH + 1_048_576),
)


class ProviderFailed(Exception):
    """``reason``: a word for logs and counters. ``away``: the provider gave no answer at all."""

    def __init__(self, reason: str, detail: str, away: bool) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = " ".join(detail.split())
        self.away = away


_FILES: Final = ("cacertfile", "certfile", "keyfile")


class ProviderAddress(NamedTuple):
    """``url``: ``http://host:port`` or ``https://host:port``. The other fields are names of PEM files; empty: none."""

    url: str
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""


class ExhookClient:
    """Belongs to one event loop. ``pool_size``: connections. They reconnect automatically after a loss."""

    def __init__(self, address: ProviderAddress, pool_size: int, node: str) -> None:
        """Raises ValueError for a file that cannot be used."""
        parts = urlsplit(address.url)
        self._target = parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
        self._credentials = credentials(address)
        self._pool_size = pool_size
        self._node = node
        self._begun = 0.0
        self._channels: list[Any] = []
        self._calls: Any = None

    async def loaded(self, timeout: float) -> dict[str, list[str]]:
        """Introduce the node; return the hooks that the provider names, with their filters, empty: every topic.
        Raises ProviderFailed."""
        loop = asyncio.get_running_loop()
        self._begun = self._begun or loop.time()
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        request = CLASSES["ProviderLoadedRequest"](
            broker=broker_info(loop.time() - self._begun, now), meta=meta(self._node)
        )
        reply = await self.call("OnProviderLoaded", request, timeout)
        try:
            async with asyncio.timeout(timeout):
                for channel in self._channels:  # otherwise the next calls fail until all have connected again
                    await channel.channel_ready()
        except TimeoutError:
            raise ProviderFailed("unavailable", "not all connections are established", True) from None
        return {each.name: list(each.topics) for each in reply.hooks}

    @property
    def connected(self) -> bool:
        """Whether no connection was lost since ``loaded``; otherwise another provider may give the next answer."""
        return all(each.get_state() is grpc.ChannelConnectivity.READY for each in self._channels)

    async def call(self, method: str, request: Any, timeout: float) -> Any:
        """Return the answer. Raises ProviderFailed, without waiting for a connection that cannot be established."""
        if self._calls is None:
            self._open()
        call = next(self._calls)[method]
        try:
            reply = await call(request, timeout=timeout, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            raise ProviderFailed(code.name.lower(), error.details() or "", code in _AWAY) from None
        if reply is None:  # grpcio could not decode it
            raise ProviderFailed("bad_answer", "not a message of exhook", False)
        return reply

    def _open(self) -> None:
        for number in range(self._pool_size):
            options = [*_OPTIONS, ("taipan.connection", number)]
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(self._target, options=options)
            else:
                channel = grpc.aio.secure_channel(self._target, self._credentials, options=options)
            self._channels.append(channel)
        self._calls = cycle([_calls_of(channel) for channel in self._channels])

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        channels, self._channels, self._calls = self._channels, [], None
        for channel in channels:
            await channel.close()


def _calls_of(channel: Any) -> dict[str, Any]:
    return {
        name: channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=CLASSES[method.input_type.name].SerializeToString,
            response_deserializer=CLASSES[method.output_type.name].FromString,
        )
        for name, method in _METHODS.items()
    }


def address_faults(address: ProviderAddress) -> Iterator[tuple[str, str]]:
    """Yield each key that is wrong, and why. The URL must have a host."""
    parts = urlsplit(address.url)
    if "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        yield "url", "expected only http:// or https://, the host and the port"
    if bool(address.certfile) != bool(address.keyfile):
        yield "certfile", "certfile and keyfile are needed together"
    if parts.scheme == "http":
        named = [key for key in _FILES if getattr(address, key)]
        if named:
            yield named[0], "only used with https://: change url, or remove it"
        return
    try:
        credentials(address)
    except ValueError as error:
        yield "cacertfile", str(error)


def credentials(address: ProviderAddress) -> Any:
    """Return the TLS credentials for an ``https`` URL, None for any other URL. Raises ValueError."""
    if not address.url.startswith("https:"):
        return None
    authorities, key, chain = (_content(name) for name in (address.cacertfile, address.keyfile, address.certfile))
    return grpc.ssl_channel_credentials(authorities, key, chain)


def _content(name: str) -> bytes | None:
    if not name:
        return None
    try:
        check_regular(name, MAX_CREDENTIALS)
        with open(name, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
