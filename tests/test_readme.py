"""The README's numbers are those of the results folder, and nothing in it is left to fill in."""

import json
import re
from pathlib import Path

import pytest

from vspair.studies.ct.tables import by_noise
from vspair.studies.gaussian.study import METRICS
from vspair.studies.heat.study import noise_table
from vspair.studies.results import Row, markdown

ROOT = Path(__file__).parent.parent


TABLES = {
    "gaussian": {k: v for k, v in METRICS.items() if k in ("kl_exact", "trace_ratio", "active")},
    "mnist": {
        "mse": "MSE of one sample",
        "mse30": "MSE of the mean of 30",
        "nnz": "active factors",
        "uncertainty_error_r": "correlation of variance and error",
        "coverage_90": "share inside the 90 % interval",
    },
}
"""Which rows of a study the README shows, with their words."""


@pytest.mark.parametrize("study", [*TABLES, "heat", "ct"])
def test_tables_are_made_from_the_summaries(study: str) -> None:
    summary = json.loads((ROOT / f"results/{study}/summary.json").read_text())
    rows = [Row(**{"preset": "", **row}) for row in summary["rows"]]
    shown = [row for row in rows if row.metric in TABLES.get(study, {})]
    readme = (ROOT / "README.md").read_text()
    others = {"heat": noise_table, "ct": lambda found: by_noise(found, "mse")}
    table = markdown(shown, TABLES[study]) if study in TABLES else others[study](rows)
    assert table in readme
    assert summary["command"] in readme
    assert summary["commit"] in readme


def test_nothing_is_left_to_fill_in_and_links_lead_somewhere() -> None:
    for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = file.read_text()
        known = re.sub(r"\b(VSPAIR_DATA|GLIBC_TUNABLES)\b", "", text)
        assert not re.search(r"\b[A-Z]+_[A-Z_]+\b", known), file.name
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (file.parent / link).exists(), f"{file.name}: {link}"
