"""Print what is above the budget; ``--budget`` lowers the budget to the present counts, ``FILE ...`` prints all hits of
files."""

import sys
from pathlib import Path

from tools.style.budget import above, counted, lowered, read, write
from tools.style.texts import english, files


def show(path: Path) -> None:
    for text, patterns in english(path):
        for line in text.splitlines():
            for name, pattern in patterns.items():
                for match in pattern.finditer(line):
                    print(f"{path}: {name}: ...{line[max(0, match.start() - 40) : match.end() + 40]}...")


def main(arguments: list[str]) -> int:
    if arguments == ["--budget"]:
        write(lowered(read(), counted(files())))
        return 0
    if arguments:
        for name in arguments:
            show(Path(name))
        return 0
    wrong = above(read(), counted(files()))
    for (file, pattern), (count, allowed) in sorted(wrong.items()):
        print(f"{file}: {pattern}: {count} occurrences, {allowed} allowed (python -m tools.style {file} shows them)")
    print(f"{sum(counted(files()).values())} occurrences, {sum(read().values())} allowed; the guide: docs/style.md")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
