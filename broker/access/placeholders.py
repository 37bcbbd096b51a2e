"""Placeholders in the settings of remote sources: ``%u`` and others, which are replaced by data about a client and its
request."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ..setting_rules import Fault, ValueRule

PLACEHOLDERS: Final = "ucaPrpCdmAt"
"""Letters that stand behind ``%``; ``P`` only where a login is asked about, ``A`` and ``t`` only a permission."""
_PLACEHOLDER: Final = re.compile(f"%([{PLACEHOLDERS}])")


def check_placeholders(known: str, template: str) -> None:
    """Raise ``ValueError`` for a template with a placeholder that this question does not have."""
    for letter in re.findall("%([A-Za-z])", template):
        if letter not in known:
            raise ValueError(f"%{letter} is not one of {', '.join('%' + each for each in known)}")


def templates(unknown: str) -> ValueRule:
    """Return the rule for a table of texts that may contain any placeholder except these."""
    known = "".join(letter for letter in PLACEHOLDERS if letter not in unknown)

    def check(value: dict[str, str]) -> Iterator[Fault]:
        for name, template in value.items():
            try:
                check_placeholders(known, template)
            except ValueError as error:
                yield Fault((name,), str(error))

    return check


def letters(template: str) -> list[str]:
    """Return the letters of the placeholders in a text, in order."""
    return _PLACEHOLDER.findall(template)


def filled_in(template: str, values: Mapping[str, str]) -> str:
    """Return the text with placeholders replaced by values. Placeholders within a value are not replaced."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], ""), template)
