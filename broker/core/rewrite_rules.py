"""Rules of topic rewrite: which topic a publication or a subscription to another topic is for.

The first rule whose ``source_topic`` matches decides. If its expression is not found in the topic, the topic stays."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Protocol

from ..config import RewriteRule
from ..mqtt.message import Publisher
from ..mqtt.topics import is_plain, unsafe_level, valid_filter, valid_name
from ..routing.filter_index import FilterIndex
from .delayed_topic import reserved

MAX_EXPRESSION: Final = 512
MAX_INSTRUCTIONS: Final = 256
MAX_TOPIC: Final = 1024
"""Bytes of the longest topic in which a rule searches. With ``MAX_INSTRUCTIONS``, a search takes at most some
milliseconds, for any expression and topic."""
INVALID: Final = ""
"""No valid topic is empty."""
_MEMORY: Final = 1 << 19
_PLACEHOLDER: Final = re.compile(r"%[cu]|\$[1-9][0-9]?", re.ASCII)

Pieces = list[str]
"""The new topic in pieces; ``%c`` and ``%u`` are pieces of their own."""


class TopicRewriting(Protocol):
    """Rewrites topics: ``extensions.rewrite``. An unchanged topic means that no rule changes it, an empty one that the
    new one would not be valid."""

    def published(self, topic: str, publisher: Publisher | None) -> str:
        """Return the topic of a publication."""

    def subscribed(self, topic_filter: str, client: Publisher) -> str:
        """Return the filter of a subscription or of the end of one, without a group."""


def rule_faults(rule: RewriteRule) -> Iterator[tuple[str, str]]:
    """Yield each key of a rule that is wrong, and why."""
    if not valid_filter(rule.source_topic) or not is_plain(rule.source_topic):
        yield "source_topic", "expected a Topic Filter without a group and without $exclusive/"
    try:
        groups = _compiled(rule.re).groups
    except ValueError as error:
        yield "re", str(error)
        return
    sample = ""
    for piece in _split(rule.dest_topic):
        placeholder = _PLACEHOLDER.fullmatch(piece) is not None
        if placeholder and piece.startswith("$") and int(piece[1:]) > groups:
            yield "dest_topic", f"names the group {piece}, and re has {groups}"
            return
        sample += "x" if placeholder else piece
    if rule.action == "subscribe":
        if not valid_filter(sample) or not is_plain(sample):
            yield "dest_topic", "expected a Topic Filter without a group and without $exclusive/"
    elif not valid_name(sample) or reserved(sample):
        yield "dest_topic", "expected a Topic Name outside of $SYS"


class RewriteRules:
    """Rules by source topic: of several with the same one, the first."""

    def __init__(self, rules: Iterable[RewriteRule]) -> None:
        self._rules: list[tuple[Any, list[str]]] = []
        self._numbers: FilterIndex[list[int]] = FilterIndex()
        for rule in rules:
            if self._numbers.get(rule.source_topic) is None:
                self._numbers.put(rule.source_topic, [len(self._rules)])
                self._rules.append((_compiled(rule.re), _split(rule.dest_topic)))

    def look(self, topic: str) -> Pieces | None:
        """Return the new topic in pieces; None: it stays."""
        found = self._numbers.match(topic)
        if not found:
            return None
        expression, destination = self._rules[min(numbers[0] for numbers in found)]
        data = topic.encode()
        if len(data) > MAX_TOPIC:
            return [INVALID]
        hit = expression.search(data)
        if hit is None:
            return None
        pieces: Pieces = []
        for piece in destination:
            if piece.startswith("$") and _PLACEHOLDER.fullmatch(piece):
                text = (hit.group(int(piece[1:])) or b"").decode("utf-8", "replace")
                pieces += [text[:1], text[1:]]  # so that text of the topic is never a placeholder
            else:
                pieces.append(piece)
        return pieces


def filled(pieces: Pieces, client: Publisher | None) -> str:
    """Return the text. A placeholder for a name that the client does not have stays as it is, as in EMQX; a name with
    special characters makes the text ``INVALID``."""
    texts: list[str] = []
    for piece in pieces:
        name: str | None = None
        if client is not None and piece == "%c":
            name = client.client_id
        elif client is not None and piece == "%u":
            name = client.username
        if name and unsafe_level(name):
            return INVALID
        texts.append(name or piece)
    return "".join(texts)


def _split(destination: str) -> list[str]:
    pieces: list[str] = []
    at = 0
    for found in _PLACEHOLDER.finditer(destination):
        pieces += [destination[at : found.start()], found.group()]
        at = found.end()
    return [*pieces, destination[at:]]


@lru_cache(maxsize=512)
def _compiled(expression: str) -> Any:
    """Return the compiled regular expression. Raises ValueError."""
    import re2  # type: ignore[import-untyped]  # here, because a node without rules does not need it

    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"expected at most {MAX_EXPRESSION} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        found = re2.compile(expression.encode(), options)
    except (re2.error, UnicodeEncodeError) as error:
        text = error.args[0] if error.args else error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise ValueError(f"expected a regular expression of RE2: {reason}") from None
    if found.programsize > MAX_INSTRUCTIONS:
        size = f"this one has {found.programsize} instructions, more than {MAX_INSTRUCTIONS}"
        raise ValueError(f"expected a smaller regular expression: {size}")
    return found
