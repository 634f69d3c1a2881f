"""Tables in the README and the documentation are those of the results; links lead somewhere."""

import json
import re
from pathlib import Path

import pytest
from fill_tables import fill, tables, write

from vspair.errors import VspairError

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "api"),
    *(ROOT / "results").rglob("*.md"),
]
MARKER = re.compile(r"<!-- begin: (\w+) -->")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return tables(ROOT / "results")


@pytest.mark.parametrize("page", [p for p in PAGES if MARKER.search(p.read_text())], ids=page_id)
def test_tables_are_made_from_the_results(page: Path, found: dict[str, str]) -> None:
    text = page.read_text()
    assert fill(text, found) == text, "run: python docs/fill_tables.py"


def test_every_table_stands_somewhere(found: dict[str, str]) -> None:
    shown = {name for page in PAGES for name in MARKER.findall(page.read_text())}
    assert shown == set(found)


def test_a_changed_number_changes_the_table(tmp_path: Path) -> None:
    for study in ("gaussian", "mnist", "heat", "ct"):
        (tmp_path / study).mkdir()
        text = (ROOT / f"results/{study}/summary.json").read_text()
        (tmp_path / study / "summary.json").write_text(text)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: results -->\n<!-- end: results -->\nafter\n")
    write(page, tmp_path)
    first = page.read_text()
    path = tmp_path / "mnist" / "summary.json"
    summary = json.loads(path.read_text())
    for row in summary["rows"]:
        if (row["model"], row["metric"]) == ("ridge", "mse_mean"):
            row["value"] = 0.012
    path.write_text(json.dumps(summary))
    write(page, tmp_path)
    assert "**ridge: 0.012**" in page.read_text()
    assert "**ridge: 0.012**" not in first
    assert first.startswith("before\n<!-- begin: results -->\n\n| problem |")
    assert first.endswith("<!-- end: results -->\nafter\n")


def test_unknown_markers_are_refused() -> None:
    with pytest.raises(VspairError, match="begin: nothing"):
        fill("<!-- begin: nothing --><!-- end: nothing -->", {"results": ""})


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    named = re.sub(r"\b(VSPAIR_DATA|GLIBC_TUNABLES|OMP_NUM_THREADS)\b|`[^`]*`", "", text)
    assert not re.search(r"\b[A-Z]+_[A-Z_]+\b|\bTODO\b", named)
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link
