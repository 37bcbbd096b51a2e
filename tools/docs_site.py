"""Hooks of ``mkdocs.yml``: pages outside ``docs`` belong to the site, and ``docs/README.md`` gives the order.

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
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "dashboard/README.md": "dashboard-source.md",
    "LICENSE": "LICENSE.txt",
}
"""Linked files outside ``docs``, and their place in the site; the first one is the start page."""
INDEX = "documentation.md"
"""The place of ``docs/README.md`` in the site."""
LISTED = {"decisions": "Decisions"}
"""Directories whose pages are listed by their headings."""

_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_IMAGE = re.compile(r"(\bsrc(?:set)?=\")([^\"\s]+)(\")")
_HEAD = re.compile(r"<thead>.*?</thead>\n?", re.DOTALL)
_ROW = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\)")
Nav = list[dict[str, "str | Nav"]]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation((ROOT / "docs" / "README.md").read_text("utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    listed = files.get_file_from_path("README.md")
    if listed is not None:
        files.remove(listed)
        files.append(File.generated(config, INDEX, content=(ROOT / "docs" / "README.md").read_text("utf-8")))
    worker = (ROOT / "tools" / "docs_search.js").read_text("utf-8")
    files.append(File.generated(config, "assets/iframe-worker.js", content=worker))
    for source, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    for directory, title in LISTED.items():
        files.append(File.generated(config, f"{directory}/README.md", content=contents(directory, title)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_links_of_site(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return without_empty_heads(html)


def without_empty_heads(html: str) -> str:
    """Remove empty header rows: Markdown requires a header row before each table."""
    return _HEAD.sub(lambda head: head[0] if re.sub(r"<[^>]*>|\s", "", head[0]) else "", html)


def navigation(index: str) -> Nav:
    """Return the sections of ``docs/README.md`` with the pages in their tables, and those named below a table."""
    found: Nav = [{"Taipan": "index.md"}, {"Documentation": INDEX}]
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
    """Return the page with links to the files of the site. ``place``: the page's own, in the site."""
    for links in (_LINK, _IMAGE):
        markdown = links.sub(lambda found: found[1] + _relative(found[2], place) + found[3], markdown)
    return markdown


def _relative(link: str, place: str) -> str:
    if re.match(r"[a-z]+:", link):
        return link
    return posixpath.relpath(of_site(link, place), posixpath.dirname(place) or ".")


def of_site(link: str, place: str) -> str:
    """Return the place in the site of a link from the page at ``place``."""
    beside = {own: file for file, own in BESIDE.items()} | {INDEX: "docs/README.md"}
    source = beside.get(place, f"docs/{place}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if target in BESIDE:
        return BESIDE[target]
    if target in ("docs", "docs/README.md"):
        return INDEX
    if (ROOT / target).is_dir():
        target += "/README.md"
    return target.removeprefix("docs/")
