"""What ``mkdocs.yml`` asks of us: the pages beside ``docs`` belong to the site, and ``docs/README.md`` gives the order.

MkDocs calls the functions ``on_...`` while it builds (``make docs``).
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = {
    "README.md": "introduction.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "dashboard/README.md": "dashboard-source.md",
    "LICENSE": "LICENSE.txt",
}
"""Files that pages link to, and where the site has them."""
LISTED = {"decisions": "Decisions", "profiles": "Profiles"}
"""Directories whose pages are listed by their headings."""

_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_ROW = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\)")
Nav = list[dict[str, "str | Nav"]]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation((ROOT / "docs" / "README.md").read_text("utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    for directory, title in LISTED.items():
        files.append(File.generated(config, f"{directory}/README.md", content=contents(directory, title)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_links_of_site(markdown, page.file.src_uri)


def navigation(index: str) -> Nav:
    """The sections of ``docs/README.md`` with the pages of their tables, and with those named below a table."""
    found: Nav = [{"Taipan": "introduction.md"}, {"Documentation": "README.md"}]
    for section in index.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        pages: Nav = []
        for name, link in _ROW.findall(body):
            place = of_site(link, "README.md")
            directory = place.removesuffix("/README.md")
            if directory in LISTED:
                pages.append({name.capitalize(): [{name.capitalize(): place}, *_of_directory(directory)]})
            else:
                pages.append({name: place})
        found.append({title: pages})
    return found


def _of_directory(directory: str) -> Nav:
    return [{_title(page): f"{directory}/{page.name}"} for page in _pages(directory)]


def _pages(directory: str) -> list[Path]:
    return sorted((ROOT / "docs" / directory).glob("*.md"))


def _title(page: Path) -> str:
    return page.read_text("utf-8").partition("\n")[0].lstrip("# ")


def contents(directory: str, title: str) -> str:
    rows = [f"- [{_title(page)}]({page.name})" for page in _pages(directory)]
    return f"# {title}\n\n" + "\n".join(rows) + "\n"


def with_links_of_site(markdown: str, place: str) -> str:
    """The same page with links as the site has its files. ``place``: the page's own, in the site."""
    return _LINK.sub(lambda found: found[1] + _relative(found[2], place) + found[3], markdown)


def _relative(link: str, place: str) -> str:
    if re.match(r"[a-z]+:", link):
        return link
    return posixpath.relpath(of_site(link, place), posixpath.dirname(place) or ".")


def of_site(link: str, place: str) -> str:
    """Where the site has what the page at ``place`` links to."""
    source = next((file for file, own in BESIDE.items() if own == place), f"docs/{place}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if target in BESIDE:
        return BESIDE[target]
    if (ROOT / target).is_dir():
        target += "/README.md"
    return target.removeprefix("docs/")
