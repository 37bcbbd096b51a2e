"""Text split into the characters that a reader sees: a letter with its accents, a family of emoji, a flag."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from .budget import Budget

_JOINER: Final = "\u200d"
# Characters that may join the previous one are in these blocks; Latin, Greek, Cyrillic, CJK and Hangul syllables are
# not.
_MAY_JOIN = re.compile("\r\n|[\u0300-\u036f\u0483-\u0489\u0591-\u302f\u3099\u309a\ua000-\uabff\ud7a4-\U0010ffff]")


def is_plain(text: str) -> bool:
    """Return whether every code point is certainly a separate character; fast, so that only other texts are checked in
    detail."""
    return _MAY_JOIN.search(text) is None


def _extends(character: str) -> bool:
    code = ord(character)
    # Marks and joiners. Skin tones (category: symbols) and halfwidth voicing marks (letters) are listed by code.
    return (
        unicodedata.category(character) in ("Mn", "Me", "Mc")
        or code in (0x200C, 0x200D, 0xFF9E, 0xFF9F)
        or 0x1F3FB <= code <= 0x1F3FF
        or 0xE0020 <= code <= 0xE007F
    )


def _hangul(code: int) -> str:
    if 0x1100 <= code <= 0x115F:
        return "L"
    if 0x1160 <= code <= 0x11A7:
        return "V"
    if 0x11A8 <= code <= 0x11FF:
        return "T"
    if 0xAC00 <= code <= 0xD7A3:
        return "LV" if (code - 0xAC00) % 28 == 0 else "LVT"
    return ""


_HANGUL_GOES_ON: Final = {
    ("L", "L"),
    ("L", "V"),
    ("L", "LV"),
    ("L", "LVT"),
    ("LV", "V"),
    ("V", "V"),
    ("LV", "T"),
    ("V", "T"),
    ("LVT", "T"),
    ("T", "T"),
}


def _regional(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF


def graphemes(text: str, budget: Budget) -> list[str]:
    """Return the characters that a reader sees; CR LF is one. Every code point costs a step.

    Follows the extended clusters of Unicode's annex 29 with the categories in Python's own tables."""
    budget.step(len(text))
    found: list[str] = []
    flags = 0
    previous = ""
    for character in text:
        joined = previous != "" and (
            (previous == "\r" and character == "\n")
            or (previous not in "\r\n" and _extends(character))
            or (previous == _JOINER and unicodedata.category(character) == "So")
            or (_regional(character) and flags % 2 == 1)
            or (_hangul(ord(previous)), _hangul(ord(character))) in _HANGUL_GOES_ON
        )
        flags = flags + 1 if _regional(character) else 0
        if joined:
            found[-1] += character
        else:
            found.append(character)
        previous = character
    return found


def count_graphemes(text: str, budget: Budget) -> int:
    """Return the number of characters that a reader sees."""
    if is_plain(text):
        return len(text)
    return len(graphemes(text, budget))
