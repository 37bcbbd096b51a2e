"""The bodies of one client that are transferred in blocks, with limits: the body of the request that it is sending, and
those of the answers that it is fetching."""

from typing import Final

from ...gateway import GatewayLink
from . import codec
from .blockwise import Block, BlockAssembly, Body, Resource, exponent_of
from .codec import Options
from .settings import Transmission
from .shared import Exchanges

MAX_BODIES: Final = 4
"""Answers that a client can be fetching in blocks at a time."""


class Bodies:
    """``Exchanges.body_bytes`` has the bytes of all clients of the listener."""

    __slots__ = ("_assembly", "_bodies", "_exchanges", "_link", "_settings")

    def __init__(self, link: GatewayLink, settings: Transmission, exchanges: Exchanges) -> None:
        self._link = link
        self._settings = settings
        self._exchanges = exchanges
        self._assembly: BlockAssembly | None = None
        self._bodies: dict[Resource, Body] | None = None

    def begin(self, resource: Resource) -> None:
        """Begin the body of a request, because its first block has arrived; discard the body of an earlier request."""
        self.drop_assembly()
        self._assembly = BlockAssembly(resource)

    def add(self, resource: Resource, part: Block, payload: bytes) -> int:
        """Add a block of a request; return 0, or the code of the answer that refuses it."""
        assembly = self._assembly
        if assembly is None or assembly.resource != resource:
            return codec.INCOMPLETE
        if len(assembly) + len(payload) > self._settings.max_body_bytes:
            self.drop_assembly()
            self._link.drop("body_too_large", "a request in blocks", "max_body_bytes")
            return codec.TOO_LARGE
        if not self._charge(len(payload)):
            self.drop_assembly()
            return codec.UNAVAILABLE
        refused = assembly.add(part, payload)
        if refused:
            self._exchanges.body_bytes -= len(payload)
        return refused

    def whole(self) -> bytes:
        """Return the body of the request, whose last block has been added."""
        assert self._assembly is not None
        body = self._assembly.body()
        self.drop_assembly()
        return body

    def drop_assembly(self) -> None:
        """Give up the body of a request."""
        if self._assembly is not None:
            self._exchanges.body_bytes -= len(self._assembly)
            self._assembly = None

    def _charge(self, size: int) -> bool:
        """Count bytes of a body, if all bodies of the listener have room for them."""
        if self._exchanges.body_bytes + size > self._settings.max_bodies_bytes:
            self._link.drop("bodies_full", "a body that is transferred in blocks", "max_bodies_bytes")
            return False
        self._exchanges.body_bytes += size
        return True

    def find(self, resource: Resource) -> Body | None:
        """Return the answer that the client is fetching."""
        return None if self._bodies is None else self._bodies.get(resource)

    def in_blocks(self, resource: Resource, code: int, options: Options, payload: bytes, wanted: Block | None
                  ) -> tuple[int, Options, bytes]:  # fmt: skip
        """Return an answer, or its first block if it is larger than a block; the other blocks are kept."""
        exponent = exponent_of(self._settings.block_size)
        if wanted is not None:
            exponent = min(exponent, wanted.exponent)
        if len(payload) <= 16 << exponent and (wanted is None or not wanted.num):
            return code, options, payload
        body = Body(code, options, payload)
        part = body.part(wanted or Block(0, False, exponent), exponent)
        if part is None:
            return codec.BAD_REQUEST, [], b""
        if not self._keep(resource, body):
            return codec.UNAVAILABLE, [], b""
        return code, *part

    def _keep(self, resource: Resource, body: Body) -> bool:
        bodies = self._bodies
        if bodies is None:
            bodies = self._bodies = {}
        old = bodies.pop(resource, None)
        if old is None and len(bodies) >= MAX_BODIES:
            old = bodies.pop(next(iter(bodies)))
        if old is not None:
            self._exchanges.body_bytes -= len(old.payload)
        if not self._charge(len(body.payload)):
            return False
        bodies[resource] = body
        return True

    def end(self) -> None:
        """Keep nothing."""
        self.drop_assembly()
        for body in (self._bodies or {}).values():
            self._exchanges.body_bytes -= len(body.payload)
        self._bodies = None
