"""The patterns of docs/style.md that a regular expression can find, by name."""

import re

PATTERNS = {
    name: re.compile(pattern, re.M)
    for name, pattern in {
        # "Who is removed is disconnected.", "What waits is delivered."
        "headless": r"(?<![\w-])(?:^|(?<=[.:;,] ))(?:[Ww]ho|[Ww]hat) (?:is|are|was|has|have|may|does|waits|comes|wants"
        r"|talks|stays|counts|runs|fails|cannot|it|they)\b",
        # "Where nothing else is said"
        "where": r"\b[Ww]here (?:there (?:is|are)|it (?:is|has)|nothing|nobody|no |a |an )",
        "take": r"\b(?:takes no|is taken|are taken|takes? (?:a|the|it) (?:hash|file|option|name)s?)\b",
        "want": r"\bwants?\b(?! to)",
        "count": r"\bcounts? (?:at once|from then|too|here|there|for all)\b",
        "tell": r"\b(?:is|are|was) told\b",
        "anew": r"\banew\b",
        "meanwhile": r"\b[Mm]eanwhile\b",
        "for ever": r"\bfor ever\b",
        "likewise": r"\b(?:likewise|so (?:do|does|is|are) (?!that\b))",
        "of two": r"\bOf (?:two|each|several|them|which|these)\b",
        "somebody": r"\b(?:[Ss]ome|[Nn]o|[Ee]very)body\b",
        "such a one": r"\bsuch (?:a one|ones)\b",
        "in force": r"\bin force\b",
        "user name": r"\b[Uu]ser names?\b",
        "is no": r"(?<![Tt]here )\b(?:is|are|was) no "
        r"(?!longer\b|more\b|need\b|way\b|reason\b|such\b|other\b|space\b|room\b)[a-z]+\b",
    }.items()
}
