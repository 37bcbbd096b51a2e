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


def _pattern(words: str) -> str:
    first, *others = words.split()
    forms = [f"[{first[0].upper()}{first[0]}]{first[1:]}(?:s|es|ed)?", *others]
    if others:
        forms[-1] += "s?"
    return r"\b" + r"\s+".join(forms) + r"\b"
