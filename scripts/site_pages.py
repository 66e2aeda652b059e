"""The site's pages that are no files of docs, and links to what is no page: a hook of MkDocs (mkdocs.yml).

README.md is the front page. A link to another file of the repository becomes a link to its page, or the file's name
where it has none. A link to nothing ends the build.
"""

import posixpath
import re
from collections.abc import Container
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT: Final = Path(__file__).parents[1]
_PAGES: Final = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_SOURCES: Final = {page: source for source, page in _PAGES.items()}
_DOCS: Final = "docs/"
_LINK: Final = re.compile(r"(?<!!)\[([^\]\[]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_IMAGE: Final = re.compile(rf'\b(src|srcset)="{_DOCS}([^"]+)"')


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages that are written elsewhere."""
    for source, page in _PAGES.items():
        files.append(File.generated(config, page, content=(_ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page with links that hold on the site."""
    return rewritten(markdown, page.file.src_uri, files.src_uris)


def rewritten(markdown: str, page: str, pages: Container[str]) -> str:
    """The text of one of the pages."""
    own = _SOURCES.get(page, _DOCS + page)

    def linked(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(own), path))
        if not (_ROOT / target).exists():
            raise PluginError(f"{own} links to {path}, which is not there")
        name = _PAGES.get(target, target.removeprefix(_DOCS))
        if target not in _PAGES and name not in pages:
            return text if target in text else f"{text} (`{target}`)"
        return f"[{text}]({posixpath.relpath(name, posixpath.dirname(page) or '.')}{anchor})"

    return _IMAGE.sub(r'\1="\2"', _LINK.sub(linked, markdown))
