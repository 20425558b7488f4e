"""`python3 -m labs.templates [FOLDER]`: which chat templates are append-only, as docs/templates.md.

Without a folder the templates of the installed `trl` package are read; see requirements/fixtures.txt.
"""

import argparse
import collections
import importlib.util
from pathlib import Path

from headrace.harness.templates import TemplateReport, Verdict, report_template

PAGE = Path(__file__).parent.parent / "docs" / "templates.md"
HEADERS = ("a question", "… after thinking", "a tool's output", "… after thinking")
INTRODUCTION = """# Which chat templates are append-only?

A template is append-only when what it renders with one more message starts with what it rendered before. Only then can a
sequence go on from the exact tokens that were sampled; with any other, a later turn would show the policy a history that it
never produced. Headrace does not render history again in either case. It asks this question when a harness is made, and
refuses a template that would, with the cause (`harness.kind = "renderers"`, family `default`); the families of the
`renderers` package go on from the ids held where the template alone would not, and `on_rewrite = "fork"` follows one that
only drops thoughts on a path of its own ([families.md](families.md)).

Each row is one template of `trl` {version} (Apache-2.0), rendered as text for one short conversation: a question, a turn of
the policy, and what stands over the column. `thinking dropped`: the thought is gone from the earlier turn.
`history rewritten`: something else of it changed. `not shown`: the template passes over calls or outputs. `refused`: it
raises an error. Made by `python3 -m labs.templates`.
"""


def page(folder: Path, version: str) -> str:
    """The page for the templates of a folder."""
    reports = {path.stem: report_template(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.jinja"))}
    lines = [INTRODUCTION.format(version=version)]
    lines += ["|  | " + " | ".join(HEADERS) + " |", "|---|" + "---:|" * len(HEADERS)]
    for verdict in Verdict:
        counts = [
            collections.Counter(cells).get(verdict, 0) for cells in zip(*map(_cells, reports.values()), strict=True)
        ]
        lines.append(f"| {verdict.value} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| template | " + " | ".join(HEADERS) + " |", "|---|" + "---|" * len(HEADERS)]
    lines += [
        f"| `{name}` | " + " | ".join(cell.value for cell in _cells(report)) + " |" for name, report in reports.items()
    ]
    return "\n".join(lines) + "\n"


def installed() -> tuple[Path, str] | None:
    """(folder of the installed corpus, its version); None without one. The package itself is not imported."""
    from importlib import metadata

    found = importlib.util.find_spec("trl")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "chat_templates", metadata.version("trl")


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    arguments = parser.parse_args()
    corpus = installed() if arguments.folder is None else (arguments.folder, "of that folder")
    if corpus is None:
        parser.error("trl is not installed: pip install --no-deps -r requirements/fixtures.txt")
    PAGE.write_text(page(*corpus), encoding="utf-8")
    print(PAGE)


def _cells(report: TemplateReport) -> tuple[Verdict, ...]:
    return (report.question, report.question_after_thought, report.output, report.output_after_thought)


if __name__ == "__main__":
    main()
