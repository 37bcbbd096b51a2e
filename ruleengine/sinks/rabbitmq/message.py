"""RabbitMessage: a row as a message for RabbitMQ."""

import msgspec


class RabbitMessage(msgspec.Struct, frozen=True, array_like=True):
    """``exchange_type`` and ``durable`` are those of an exchange that is created because it does not exist. A durable
    message is stored on disk by durable queues."""

    exchange: str
    exchange_type: str
    durable: bool
    routing_key: str
    payload: bytes
