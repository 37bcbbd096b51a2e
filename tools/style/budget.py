"""How many occurrences of each pattern a file may have: ``budget.txt``, lines of file, pattern and number."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tools.style.texts import ROOT, english

FILE = Path(__file__).with_name("budget.txt")

Counts = dict[tuple[str, str], int]
"""Number of occurrences by file, relative to the root, and pattern."""


def counted(paths: Iterable[Path], root: Path = ROOT) -> Counts:
    found: Counter[tuple[str, str]] = Counter()
    for path in paths:
        for text, patterns in english(path):
            for name, pattern in patterns.items():
                found[path.relative_to(root).as_posix(), name] += len(pattern.findall(text))
    return {key: count for key, count in found.items() if count}


def read(file: Path = FILE) -> Counts:
    rows = (line.rsplit(maxsplit=1) for line in file.read_text("utf-8").splitlines() if line)
    return {(name.split(" ", 1)[0], name.split(" ", 1)[1]): int(count) for name, count in rows}


def write(counts: Counts, file: Path = FILE) -> None:
    file.write_text(
        "".join(f"{name} {pattern} {count}\n" for (name, pattern), count in sorted(counts.items())), "utf-8"
    )


def above(budget: Counts, counts: Counts) -> dict[tuple[str, str], tuple[int, int]]:
    """Return what exceeds the budget: for each the count and the allowed number."""
    return {key: (count, budget.get(key, 0)) for key, count in counts.items() if count > budget.get(key, 0)}


def lowered(budget: Counts, counts: Counts) -> Counts:
    """Return the budget with each number lowered to the actual one; no number grows."""
    return {key: min(allowed, counts[key]) for key, allowed in budget.items() if key in counts}
