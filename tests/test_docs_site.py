"""The documentation as a site: every page is in it, links lead somewhere, and nothing comes from elsewhere."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tools.docs_site import navigation, with_links_of_site

ROOT = Path(__file__).parents[1]
# What a page loads by itself; links that a reader follows may lead anywhere.
LOADED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)""")
IMAGES = re.compile(r"""<(?:img|source)\b[^>]*\bsrc(?:set)?=["']?(?!data:|https?:)([^"'\s>]+)""")
STYLES = re.compile(
    r"""<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|icon)[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_built_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    pages = sorted(tmp_path.rglob("*.html"))
    missing = [
        page.relative_to(ROOT)
        for page in (ROOT / "docs").rglob("*.md")
        if page.name != "README.md" and not (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    ]
    assert not missing
    # It begins with the README, is searched as a file too, and has no row of headings that says nothing.
    for page, title in (("index.html", "Taipan"), ("documentation.html", "Documentation")):
        assert re.search(rf"<h1[^>]*>{title}", (tmp_path / page).read_text("utf-8")), page
    assert 'href="drawings/logo.svg"' in (tmp_path / "index.html").read_text("utf-8")
    assert (tmp_path / "search" / "search_index.js").read_text("utf-8").startswith("var __index = ")
    assert (tmp_path / "assets" / "iframe-worker.js").read_text("utf-8") == (ROOT / "tools/docs_search.js").read_text()
    for page in pages:
        text = page.read_text("utf-8")
        assert not LOADED.findall(text) + STYLES.findall(text), page
        assert not re.findall(r"<thead>(?:\s|</?t[rh][^>]*>)*</thead>", text), page
        # 404.html is for any path, so its images begin at the root of the site.
        places = [tmp_path / src[1:] if src[0] == "/" else page.parent / src for src in IMAGES.findall(text)]
        missing_images = [place for place in places if not place.exists()]
        assert not missing_images, page


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_link_to_nowhere_ends_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# A page\n\n[gone](gone.md)\n", "utf-8")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), docs_dir=str(docs), strict=True)
    config.hooks.clear()
    for name in [name for name in config.plugins if name.startswith("tools/")]:
        config.plugins.pop(name)
    with pytest.raises(Abort):
        build(config)


def test_links_of_a_page_beside_docs() -> None:
    assert with_links_of_site("[a](docs/access.md#x) [b](LICENSE) [c](https://x/y)", "index.md") == (
        "[a](access.md#x) [b](LICENSE.txt) [c](https://x/y)"
    )
    picture = '<source srcset="docs/dashboard/a-dark.webp"><img src="docs/dashboard/a.webp" alt="a">'
    assert with_links_of_site(picture, "index.md") == picture.replace("docs/", "")
    assert with_links_of_site("[a](../../README.md#x) [b](../decisions/)", "api/access.md") == (
        "[a](../index.md#x) [b](../decisions/README.md)"
    )


def test_the_order_is_that_of_the_list() -> None:
    found = navigation("# D\n\n## One\n\n| [A](a.md) | x |\n\nMore: [B](b.md).\n\n## Two\n\n[C](../SECURITY.md)\n")
    assert found[2:] == [{"One": [{"A": "a.md"}, {"B": "b.md"}]}, {"Two": [{"C": "security.md"}]}]
