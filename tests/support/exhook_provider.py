"""A provider of EMQX's exhook protocol: a gRPC server in this process, which remembers what it was asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from taipan.broker.access.exhook.messages import CLASSES, SERVICE, STOP_AND_RETURN

Answer = Callable[[Any], Awaitable[Any] | Any]
METHODS = CLASSES["LoadedResponse"].DESCRIPTOR.file.services_by_name["HookProvider"].methods


def decided(result: bool, kind: int = STOP_AND_RETURN) -> Any:
    return CLASSES["ValuedResponse"](type=kind, bool_result=result)


class Provider:
    """``hooks``: what it wants, with filters. ``answers``: by the name of a method; without one, an empty message. An
    answer of bytes is sent as it is.
    ``asked``: the name of the method and the request, in order."""

    def __init__(self, **hooks: list[str]) -> None:
        self.hooks = {name.replace("__", "."): topics for name, topics in hooks.items()}
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, Any]] = []
        self.port = 0
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, method: str) -> list[Any]:
        """Return the requests of a method."""
        return [request for name, request in self.asked if name == method]

    async def start(self, credentials: Any = None) -> None:
        """Listen, on the same port as before."""
        server = self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        )
        handlers = {
            each.name: grpc.unary_unary_rpc_method_handler(
                self._handler(each.name, CLASSES[each.output_type.name]),
                request_deserializer=CLASSES[each.input_type.name].FromString,
                response_serializer=lambda made: made if isinstance(made, bytes) else made.SerializeToString(),
            )
            for each in METHODS
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = f"127.0.0.1:{self.port}"
        if credentials is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(address, credentials)
        assert self.port
        await server.start()

    async def stop(self) -> None:
        """End as by kill -9: calls under way fail."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def _handler(self, name: str, output: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(request: Any, context: Any) -> Any:
            self.asked.append((name, request))
            answer = self.answers.get(name)
            if answer is None and name == "OnProviderLoaded":
                spec = CLASSES["HookSpec"]
                return output(hooks=[spec(name=hook, topics=topics) for hook, topics in self.hooks.items()])
            found = output() if answer is None else answer(request)
            return await found if asyncio.iscoroutine(found) else found

        return handle


def changed(request: Any, kind: int = STOP_AND_RETURN, allow: bool | None = None, **fields: Any) -> Any:
    """An answer of OnMessagePublish: the message with other fields."""
    reply = CLASSES["ValuedResponse"](type=kind)
    reply.message.CopyFrom(request.message)
    for name, value in fields.items():
        setattr(reply.message, name, value)
    if allow is not None:
        reply.message.headers["allow_publish"] = str(allow).lower()
    return reply
