"""Messages of LDAP (RFC 4511): requests as bytes, and answers. The structures are those of pyasn1-modules."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyasn1.codec.ber import decoder, encoder
from pyasn1.error import PyAsn1Error
from pyasn1_modules import rfc2251

SUCCESS: Final = 0
SIZE_LIMIT_EXCEEDED: Final = 4
NO_SUCH_OBJECT: Final = 32
NOT_ACCEPTED: Final = (19, 48, 49, 53)
"""Results of a bind with a password that is wrong, or of an entry that may not log in."""
START_TLS: Final = b"1.3.6.1.4.1.1466.20037"
MOST_BYTES: Final = 1_048_576
"""The most bytes of an answer."""
_SUBTREE: Final = 2

Condition = tuple[str, bytes]
"""An attribute, and the value that it must have."""
Conditions = tuple[Literal["and", "or"], Sequence["Condition | Conditions"]]


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """``dn``: the name of the entry, as the directory writes it. ``attributes``: values by lower-case name."""

    dn: bytes
    attributes: dict[str, list[bytes]]

    def values(self, attribute: str) -> list[bytes]:
        return self.attributes.get(attribute.lower(), [])


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server. ``code`` is the result, or None if further answers follow. ``entry`` is an entry that a
    search has found."""

    number: int
    code: int | None
    text: str = ""
    entry: DirectoryEntry | None = None


class BadAnswer(ValueError):
    """The bytes cannot be read as an LDAP message."""


def bind(number: int, dn: bytes, password: bytes) -> bytes:
    message = _new(number)
    request = message["protocolOp"]["bindRequest"]
    request["version"] = 3
    request["name"] = dn
    request["authentication"]["simple"] = password
    return bytes(encoder.encode(message))


def start_tls(number: int) -> bytes:
    message = _new(number)
    message["protocolOp"]["extendedReq"]["requestName"] = START_TLS
    return bytes(encoder.encode(message))


def search(number: int, base: str, condition: "Condition | Conditions", attributes: Sequence[str], most: int) -> bytes:
    """``base``: the name of an entry, which is searched together with all entries below it. ``most``: the maximum
    number of entries."""
    message = _new(number)
    request = message["protocolOp"]["searchRequest"]
    request["baseObject"] = base.encode("utf-8", "surrogatepass")
    request["scope"] = _SUBTREE
    request["derefAliases"] = 0
    request["sizeLimit"] = most
    request["timeLimit"] = 0
    request["typesOnly"] = False
    _write(request["filter"], condition)
    for index, attribute in enumerate(attributes):
        request["attributes"][index] = attribute
    return bytes(encoder.encode(message))


def _new(number: int) -> Any:
    message = rfc2251.LDAPMessage()
    message["messageID"] = number
    return message


def _write(into: Any, condition: "Condition | Conditions") -> None:
    first, second = condition
    if isinstance(second, bytes):
        into["equalityMatch"]["attributeDesc"] = first
        into["equalityMatch"]["assertionValue"] = second
        return
    for index, each in enumerate(second):
        _write(into[first][index], each)


def missing_bytes(head: bytes) -> int | None:
    """Return how many bytes of a message follow the first ones; None: its length is not complete yet. Raises
    BadAnswer."""
    if len(head) < 2:
        return None
    if head[0] != 0x30:
        raise BadAnswer("not an LDAP message")
    length, size = head[1], 2
    if length >= 0x80:
        size = 2 + (length & 0x7F)
        if not 3 <= size <= 6:
            raise BadAnswer("a length that is not valid in LDAP")
        if len(head) < size:
            return None
        length = int.from_bytes(head[2:size], "big")
    if length > MOST_BYTES:
        raise BadAnswer(f"more than {MOST_BYTES} bytes")
    return size + length - len(head)


def read(data: bytes) -> Answer:
    """Return the answer in a complete LDAP message. Raises BadAnswer."""
    try:
        message, _ = decoder.decode(data, asn1Spec=rfc2251.LDAPMessage())
        number = int(message["messageID"])
        kind = message["protocolOp"].getName()
        operation = message["protocolOp"][kind]
        if kind == "searchResEntry":
            attributes = {
                str(each["type"]).lower(): [bytes(value) for value in each["vals"]] for each in operation["attributes"]
            }
            return Answer(number, None, entry=DirectoryEntry(bytes(operation["objectName"]), attributes))
        if kind == "searchResRef":
            return Answer(number, None)
        return Answer(number, int(operation["resultCode"]), bytes(operation["errorMessage"]).decode("utf-8", "replace"))
    except (PyAsn1Error, KeyError, ValueError, RecursionError) as error:
        raise BadAnswer(f"not an LDAP message: {type(error).__name__}") from None
