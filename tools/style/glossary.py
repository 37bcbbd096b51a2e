"""The terms of docs/glossary.md, and the pattern of the words that a term replaces: the glossary is their only list.

The table "One term for one concept" has the words not to use in its second column. Those in code type are never right,
and the pattern finds them; whether another one is right depends on its context.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
_ROW = re.compile(r"^\| *([^|]+?) *\| *([^|]+?) *\|$", re.M)


def avoided(page: str) -> dict[str, list[str]]:
    """Return the words in code type that the glossary replaces, by term."""
    table = page.partition("## One term for one concept")[2].partition("\n## ")[0]
    found = {term: re.findall(r"`([^`]+)`", words) for term, words in _ROW.findall(table)}
    return {term: words for term, words in found.items() if words}


def pattern_of(words: list[str]) -> re.Pattern[str]:
    """Return the pattern that finds any of these words: in the plural, with a verb in another form, and capitalised."""
    return re.compile("|".join(map(_pattern, words)))


def replacements(page: str) -> list[tuple[str, str]]:
    """Return the words in code type as pairs for textlint's rule *terminology*, which ignores case: a pattern, and the
    term, in the plural if the words are."""
    pairs = [(word, term) for term, words in avoided(page).items() for word in words]
    return [(_pattern(word, "(s?)"), f"{term}$1") if " " in word else (_pattern(word), term) for word, term in pairs]


def _pattern(words: str, plural: str = "s?") -> str:
    first, *others = words.split()
    forms = [f"[{first[0].upper()}{first[0]}]{first[1:]}(?:s|es|ed)?", *others]
    if others:
        forms[-1] += plural
    return r"\b" + r"\s+".join(forms) + r"\b"
