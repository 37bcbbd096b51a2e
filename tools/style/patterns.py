"""The patterns of docs/style.md that a regular expression can find, by name."""

import re

from tools.style.glossary import PAGE, avoided, pattern_of

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
        "is no": r"(?<![Tt]here )\b(?:is|are|was) no "
        r"(?!longer\b|more\b|need\b|way\b|reason\b|such\b|other\b|space\b|room\b)[a-z]+\b",
    }.items()
}
# "user name", "switched off": see the glossary.
PATTERNS["other term"] = pattern_of([word for words in avoided(PAGE.read_text("utf-8")).values() for word in words])

MESSAGES = {
    name: re.compile(pattern, re.M)
    for name, pattern in {
        # "The user is there already."
        "exists": r"\b(?:is|are) there (?:already|twice)\b|\bthere (?:is|are) an? [^.;]+ already\b",
        # "A node runs already.", "It is counted already."
        "already": r"\b(?:is|are) (?:counted|watched|open|evacuated|bound) already\b",
        "take no": r"\btakes? (?:no|too many|longer)\b",
        "let in": r"\b(?:lets? (?:in|nobody|this node)|comes? in\b|let in\b)",
        "is over": r"\b(?:is|are) (?:over|gone)\b",
        "stands": r"\bstands? (?:alone|for|in)\b",
        "go together": r"\bgo(?:es)? (?:together|with)\b",
        "tells more": r"\btells? (?:more|by|who|which)\b",
        "behind": r"\bbehind the\b",
        "any more": r"\b(?:not|no|nothing|nobody) .*\bany more\b",
        "a text": r"\b(?:a text|texts)\b",
    }.items()
}
"""For messages of the programs, which a reader sees without their context; next to ``PATTERNS``."""

DASHBOARD = {
    name: re.compile(pattern, re.M)
    for name, pattern in {
        # "It is on.", "These are not the same."
        "pronoun first": r"^(?:(?:It|Its|They|Them|He|She)\b|(?:This|These|Those) (?:is|are|was|were|has|have|may)\b)",
        # "No user is like this.", "The user is there."
        "is there": r"\b(?:is|are) (?:there|here|like this|like that|gone|over)\b(?! (?:a|an|no)\b)",
        # "Client ID", "Delete", "Create" and so on, next to the words of the glossary.
        "label": r"\b(?:Client Identifier|Trouble\b|[Mm]ake the\b|[Ll]et the node make|[Mm]ended|[Kk]icked? out"
        r"|[Ww]ho may\b)",
        # More than 25 words up to the next full stop.
        "long sentence": r"(?:\S*[^\s.?!][ \t]+){25,}\S",
    }.items()
}
"""For texts of the dashboard, which stand alone on a screen; next to ``PATTERNS``."""
