"""``make style``: no file has more of a discouraged pattern than its budget."""

from pathlib import Path

import pytest

from tools.style.budget import above, counted, lowered, read, write
from tools.style.glossary import PAGE, avoided, pattern_of
from tools.style.patterns import DASHBOARD, MESSAGES, PATTERNS
from tools.style.texts import english, files

FOUND = {
    "headless": "Who is removed is disconnected.",
    "where": "Where nothing else is said, it observes.",
    "take": "The file is taken.",
    "want": "Taipan wants Python.",
    "count": "Rules count at once.",
    "tell": "The client is told.",
    "anew": "It starts anew.",
    "meanwhile": "Rows wait meanwhile.",
    "for ever": "It stays for ever.",
    "likewise": "It ends, and so does the session.",
    "of two": "Of two clients one stays.",
    "somebody": "Nobody subscribed.",
    "such a one": "It needs such a one.",
    "in force": "The ban is in force.",
    "other term": "A user name is needed.",
    "is no": "A subscription is no client.",
    "exists": "there is a rule r already",
    "already": "it is watched already",
    "take no": "NATS takes no writes",
    "let in": "the node lets nobody in",
    "is over": "the exchange is over",
    "stands": "it stands for a secret",
    "go together": "certfile and keyfile go together",
    "tells more": "the log tells more",
    "behind": "bytes behind the last field",
    "any more": "the answer is not here any more",
    "a text": "expected a text",
    "pronoun first": "It is on.",
    "is there": "The user is there.",
    "label": "Let the node make the password",
    "long sentence": "one two three four five six seven eight nine ten " * 2 + "one two three four five six.",
}


def test_no_file_is_above_its_budget() -> None:
    assert above(read(), counted(files())) == {}, "see docs/style.md"


def test_the_budget_names_files_that_exist() -> None:
    names = {path.relative_to(Path(__file__).parents[3]).as_posix() for path in files()}
    assert {name for name, _ in read()} <= names, "make style-budget"


@pytest.mark.parametrize("name", [*PATTERNS, *MESSAGES, *DASHBOARD])
def test_each_pattern_is_found(name: str) -> None:
    assert (PATTERNS | MESSAGES | DASHBOARD)[name].search(FOUND[name])


@pytest.mark.parametrize(
    "text",
    [
        "User created",
        "No users yet. Create one to require passwords.",
        "Is there another way? There is no other.",
        "one two three four five six seven eight nine ten. " * 5,
    ],
)
def test_plain_texts_of_the_dashboard_pass(text: str) -> None:
    assert not [name for name, pattern in DASHBOARD.items() if pattern.search(text)]


@pytest.mark.parametrize(
    "text",
    [
        "Deleting a user disconnects its clients.",
        "The node no longer logs it, and there is no other way.",
        "If no rule matches, `access.no_match` decides.",
        "You want to see what happens.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert not [name for name, pattern in PATTERNS.items() if pattern.search(text)]


@pytest.mark.parametrize(
    "text",
    [
        "application a already exists",
        "expected a string, got 3",
        "NATS accepts no writes now",
        "the line is not name:hash, and Mosquitto ignores it as well",
    ],
)
def test_plain_messages_pass(text: str) -> None:
    assert not [name for name, pattern in (PATTERNS | MESSAGES).items() if pattern.search(text)]


def test_words_that_the_glossary_replaces_are_found() -> None:
    words = avoided(PAGE.read_text("utf-8"))
    assert {"username", "client ID", "enable, disable", "time range"} <= set(words)
    for each in [word for found in words.values() for word in found]:
        assert PATTERNS["other term"].search(f"Use a {each} here."), each
        assert PATTERNS["other term"].search(each[0].upper() + each[1:]), each
    for sentence in ("Two client ids.", "It was switched\noff.", "Time spans."):
        assert PATTERNS["other term"].search(sentence), sentence
    for sentence in ("Two client IDs.", "The Client Identifier of the standard.", "A spanning tree.", "The offer."):
        assert not PATTERNS["other term"].search(sentence), sentence


def test_a_word_of_the_glossary_is_in_code_type_or_depends_on_its_context() -> None:
    page = "## One term for one concept\n\n| term | not |\n|---|---|\n| limit | `cap`, bound |\n| node | |\n\n## MQTT\n"
    assert avoided(page + "\n| a | `b` |\n") == {"limit": ["cap"]}
    assert pattern_of(["cap"]).findall("Caps, a cap, a capital") == ["Caps", "cap"]


def prose(path: Path) -> str:
    return "\n".join(text for text, _ in english(path) if text)


def test_texts_of_each_kind_of_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nIt starts\nanew `anew`.\n\n```\nanew\n```\n| a | anew |\n", "utf-8")
    assert prose(page).count("anew") == 2
    source = tmp_path / "source.py"
    source.write_text('"""Starts\n\n    anew."""\nanew = "anew"\n', "utf-8")
    assert prose(source).count("anew") == 1
    source.write_text(
        '"""Module."""\nKEY = "anew"\nSQL = f"{KEY}anew"\n'
        "raise ValueError(f'row {KEY} is sent anew: {print(\"it starts anew\")}')\n",
        "utf-8",
    )
    assert prose(source).splitlines() == ["Module.", "row X is sent anew: X", "it starts anew"]
    texts = tmp_path / "texts.ts"
    texts.write_text(
        'import type { A } from "./anew";\n/** Starts "anew". */\nexport const anew = { text: "Starts anew",\n'
        '  some: (by: string) => `${by ? `By ${by}, ` : ""}starts ${by} anew`, sql: \'FROM "a/#"\' };\n',
        "utf-8",
    )
    assert prose(texts).splitlines() == ["Starts anew", "Xstarts X anew", 'FROM "a/#"']


def test_texts_of_the_dashboard_have_patterns_of_their_own() -> None:
    of_dashboard = [path for path in files() if path.suffix == ".ts"]
    assert len(of_dashboard) > 10
    assert all(set(DASHBOARD) <= set(patterns) for path in of_dashboard for _, patterns in english(path))
    assert not [name for name, pattern in read() if name.startswith("dashboard/") or pattern in MESSAGES], (
        "texts of the dashboard and messages have no budget"
    )


def test_a_budget_only_falls(tmp_path: Path) -> None:
    file = tmp_path / "budget.txt"
    before = {("a.md", "anew"): 2, ("a.md", "of two"): 3, ("b.md", "want"): 1}
    write(before, file)
    assert read(file) == before
    now = {("a.md", "anew"): 1, ("a.md", "of two"): 4, ("c.md", "want"): 1}
    assert lowered(before, now) == {("a.md", "anew"): 1, ("a.md", "of two"): 3}
    assert above(before, now) == {("a.md", "of two"): (4, 3), ("c.md", "want"): (1, 0)}
