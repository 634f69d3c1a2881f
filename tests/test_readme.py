"""The README's numbers are those of the results folder, and nothing in it is left to fill in."""

import json
import re
from pathlib import Path

from vspair.studies.gaussian import METRICS
from vspair.studies.results import Row, markdown

ROOT = Path(__file__).parent.parent


def test_the_table_is_made_from_the_summary() -> None:
    summary = json.loads((ROOT / "results/gaussian/summary.json").read_text())
    rows = [Row(**{"preset": "", **row}) for row in summary["rows"]]
    shown = {k: v for k, v in METRICS.items() if k in ("kl_exact", "trace_ratio", "active")}
    assert markdown(rows, shown) in (ROOT / "README.md").read_text()


def test_nothing_is_left_to_fill_in_and_links_lead_somewhere() -> None:
    for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = file.read_text()
        assert not re.search(r"\b[A-Z]+_[A-Z_]+\b", text.replace("VSPAIR_DATA", "")), file.name
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (file.parent / link).exists(), f"{file.name}: {link}"
