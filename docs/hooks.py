"""Pages and pictures outside docs/ that our pages link to are part of the site, which MkDocs does not do by itself.

Where the repository is hosted, links lead from file to file. Here, a linked Markdown page or picture outside docs/ becomes
part of the site under `repository/`; a link to any other file there becomes its name.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
SHOWN = (".md", ".png", ".svg")


def in_repository(uri: str) -> str:
    """The path in the repository of a page of the site."""
    return uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"


def in_site(path: str) -> str:
    """The page of the site that a path in the repository has."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def targets(path: str) -> list[str]:
    """The files of the repository that a page links to, as paths from its root."""
    links = [link[3] for link in LINK.finditer((ROOT / path).read_text(encoding="utf-8"))]
    found = [posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in links if "://" not in link]
    return [target for target in found if (ROOT / target).is_file()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what those link to."""
    waiting = [in_repository(file.src_uri) for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        for target in targets(waiting.pop()):
            if target in seen or target.startswith("docs/") or not target.endswith(SHOWN):
                continue
            seen.add(target)
            files.append(File.generated(config, in_site(target), abs_src_path=str(ROOT / target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(in_repository(here))

    def turned(link: re.Match[str]) -> str:
        mark, text, address, part = link.groups()
        path = posixpath.normpath(posixpath.join(folder, address))
        if "://" in address or (path.startswith("docs/") and not here.startswith("repository/")):
            return link[0]
        if files.get_file_from_path(in_site(path)) is None:
            return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"
        return f"{mark}[{text}]({posixpath.relpath(in_site(path), posixpath.dirname(here))}{part or ''})"

    pieces = re.split(r"(^```.*?^```$|`[^`\n]+`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if piece.startswith("`") else LINK.sub(turned, piece) for piece in pieces)
