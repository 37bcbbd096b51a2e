"""The settings of the message layer, and those of CoAP: the table ``gateway`` of a listener."""

from typing import Annotated

import msgspec
from msgspec import Meta

from .blockwise import SIZES


class Transmission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message layer (RFC 7252, section 4.8). Times are in seconds."""

    ack_timeout: Annotated[float, Meta(gt=0, le=60)] = 2.0
    ack_random_factor: Annotated[float, Meta(ge=1, le=3)] = 1.5
    max_retransmit: Annotated[int, Meta(ge=0, le=20)] = 4
    answer_timeout: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    exchange_lifetime: Annotated[float, Meta(ge=1, le=3600)] = 247.0
    max_exchanges: Annotated[int, Meta(ge=100, le=10_000_000)] = 50_000
    max_exchanges_per_address: Annotated[int, Meta(ge=1, le=65_536)] = 1000
    max_requests: Annotated[int, Meta(ge=1, le=10_000)] = 64
    block_size: int = 1024
    max_body_bytes: Annotated[int, Meta(ge=1024, le=268_435_455)] = 65_536
    max_bodies_bytes: Annotated[int, Meta(ge=1024)] = 16_777_216

    def __post_init__(self) -> None:
        if self.block_size not in SIZES:
            raise ValueError(f"block_size: expected one of {', '.join(map(str, SIZES))}")


class CoapSettings(Transmission, frozen=True, forbid_unknown_fields=True):
    """``client_timeout``: seconds without a request after which a client that observes nothing is logged out.
    ``observer_check``: seconds without a datagram after which an observer is asked whether it is reachable."""

    client_timeout: Annotated[float, Meta(ge=1, le=86_400)] = 20.0
    observer_check: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    max_waiting_bytes: Annotated[int, Meta(ge=0)] = 65_536
