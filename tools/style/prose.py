"""``make prose``: spelling (cspell), grammar (Harper) and terms (textlint) of the documentation; spelling also of the
dashboard's texts.

They run on Node, in the versions of ``linters/package-lock.json``. New words belong in ``linters/words.txt``, terms in
``docs/glossary.md``.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import build_dashboard

from .glossary import PAGE, replacements
from .texts import ROOT, files

LINTERS: Final = Path(__file__).parent / "linters"
WORDS: Final = LINTERS / "words.txt"
_IGNORED: Final = LINTERS / "ignored.json"
_GENERATED: Final = ("docs/conformance.md", "docs/api/", "docs/rule-parameters.md")
"""Pages whose grammar is not checked: sentences of others, or tables of names."""


def install() -> Path:
    """Install the linters where they are missing, and return the Node that runs them. Raises CannotBuild."""
    build_dashboard.install_packages(LINTERS)
    return build_dashboard.node_and_npm()[0]


def pages() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


def spelling(node: Path, paths: list[Path]) -> list[str]:
    """Return unknown words, as ``docs/log.md:12:3 - Unknown word (teh)``."""
    cspell = LINTERS / "node_modules" / "cspell" / "bin.mjs"
    options = ["--config", str(LINTERS / "cspell.json"), "--root", "/", "--no-progress", "--no-summary", "--no-color"]
    return _lines([str(node), str(cspell), "lint", *options, *map(str, paths)], {0, 1})


def grammar(node: Path, paths: list[Path]) -> list[str]:
    """Return Harper's findings in Markdown, as ``docs/log.md:12 in in: Did you mean to repeat this word?``."""
    settings = json.dumps({"words": words(), "ignored": ignored()})
    found = map(json.loads, _lines([str(node), str(LINTERS / "grammar.js"), settings, *map(str, paths)], {0}))
    return [f"{each['file']}:{each['line']} {each['text']}: {each['message']}" for each in found]


def terms(node: Path, paths: list[Path]) -> list[str]:
    """Return words in place of a term of the glossary, or of textlint's own list, as ``docs/log.md:12 Incorrect term:
    “user name”, use “username” instead``."""
    settings = json.dumps({"terms": replacements(PAGE.read_text("utf-8")), "ignored": ignored()})
    found = map(json.loads, _lines([str(node), str(LINTERS / "terms.js"), settings, *map(str, paths)], {0}))
    return [f"{each['file']}:{each['line']} {each['message']}" for each in found]


def ignored() -> list[str]:
    """Return parts of wrong findings of Harper and textlint."""
    return list(json.loads(_IGNORED.read_text("utf-8")))


def words() -> list[str]:
    lines = WORDS.read_text("utf-8").splitlines()
    known = [line for line in lines if line and not line.startswith("#")]
    return sorted({form for word in known for form in (word, word.capitalize(), word.lower())})


def checked_for_grammar() -> list[Path]:
    return [path for path in pages() if not path.relative_to(ROOT).as_posix().startswith(_GENERATED)]


def _lines(command: list[str], good: set[int]) -> list[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode not in good:
        raise OSError(f"{command[1]} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout.splitlines()


def main() -> int:
    """Print what is found; status 1 if anything is."""
    node = install()
    found = [*spelling(node, files_for_spelling()), *grammar(node, checked_for_grammar()), *terms(node, pages())]
    print("\n".join(found) or "Spelling, grammar and terms: nothing found.")
    return 1 if found else 0


def files_for_spelling() -> list[Path]:
    """Return Markdown, the dashboard's texts, and reasons with their advice."""
    operations = ROOT / "management" / "operations"
    texts = [path for path in files() if path.suffix == ".ts"]
    return [*pages(), *texts, operations / "reasons.py", operations / "advice.py"]


if __name__ == "__main__":
    sys.exit(main())
