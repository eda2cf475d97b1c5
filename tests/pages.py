"""Run the Python and `$ fedcal` blocks of the documentation; `python tests/pages.py` writes their output and pictures.

A ```python block may be followed by a ```text block: what it prints. The blocks of a page share their names and an empty
working folder. In a ```console block each `$ fedcal …` line is followed by what it prints; `...` there stands for any text.
What a page saves as NAME.png is kept as docs/images/PAGE/NAME.png.
"""

import contextlib
import doctest
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (fedcal .*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
FRAGMENTS = {"architecture.md", "deploy.md", "privacy.md", "secure.md"}  # parts of somebody's app: shown, not run


def executed() -> list[Path]:
    """The pages that have something to run."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if page.name not in FRAGMENTS and FENCE.search(page.read_text(encoding="utf-8"))]


def run_page(page: Path, folder: Path) -> str:
    """Run the page's blocks in `folder`, which becomes the working folder; return the page with the output that they gave."""
    names: dict[str, Any] = {"__name__": page.stem}
    text, last = "", 0
    page_text = page.read_text(encoding="utf-8")
    with contextlib.chdir(folder):
        for found in FENCE.finditer(page_text):
            language, code, shown = found.groups()
            text += page_text[last : found.start()]
            last = found.end()
            if language == "console":
                text += "```console\n" + COMMAND.sub(lambda m: f"$ {m[1]}{kept(m[2], command(m[1]))}", code) + "```\n"
                continue
            printed = io.StringIO()
            line = page_text[: found.start()].count("\n") + 1
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * line + code, str(page.relative_to(ROOT)), "exec"), names)
            block = found[0] if shown is None else found[0].removesuffix(f"{shown}```\n")
            text += block if shown is None else f"{block}{kept(shown, printed.getvalue())}```\n"
    return text + page_text[last:]


def kept(shown: str, printed: str) -> str:
    """What the page shows if it fits what was printed, `...` for any text, else what was printed."""
    printed = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    return shown if doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS) else printed


def command(line: str) -> str:
    """What a fedcal command prints in 80 columns."""
    import shlex

    from typer.testing import CliRunner

    from fedcal.cli.main import app

    result = CliRunner().invoke(app, shlex.split(line, comments=True)[1:], env={"COLUMNS": "80", "TERM": "dumb"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def pictures(page: Path) -> list[str]:
    """The names of the pictures that the page shows of itself."""
    return re.findall(rf"\]\((?:\.\./)?images/{page.stem}/([\w.-]+)\)", page.read_text(encoding="utf-8"))


def rewrite(page: Path) -> None:
    """Write the page with its output, and its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        text = run_page(page, Path(folder))
        target = ROOT / "docs" / "images" / page.stem
        for name in pictures(page):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(folder) / name, target / name)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.path[0] = str(ROOT)  # pages may use the folder `paper`
    for page in [Path(name).resolve() for name in sys.argv[1:]] or executed():
        print(page.relative_to(ROOT), flush=True)
        rewrite(page)
