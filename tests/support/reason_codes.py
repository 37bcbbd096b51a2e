"""Reason Codes of a refusal as each protocol version has them."""


def bad_credentials(version: int) -> int:
    """CONNACK."""
    return 0x86 if version == 5 else 4


def not_authorized(version: int) -> int:
    """CONNACK."""
    return 0x87 if version == 5 else 5


def suback_refused(version: int) -> int:
    """SUBACK."""
    return 0x87 if version == 5 else 0x80
