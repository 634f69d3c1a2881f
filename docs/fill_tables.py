"""The tables of the README and the documentation, made from the results.

``python docs/fill_tables.py``, in the root of the repository, writes anew what stands
between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` in ``README.md`` and all pages of
``docs/``. A test fails where they differ from what it would write.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vspair import vocabulary
from vspair.errors import VspairError
from vspair.report.tables import Table, format_number
from vspair.studies.results import Row

__all__ = ["fill", "tables", "write"]

OURS = ("PAIR", "vPAIR", "sVAE", "vsPAIR")
EXACT = ("exact samples",)
"""What shows how exact a measure is, and is no method."""

NAMES = {
    "exact": "exact inversion",
    "regression": "U-Net after FBP",
    "ridge-shifts": "ridge with shifts",
    "tikhonov": "Tikhonov",
    "wiener": "Wiener filter",
}
"""What baselines are called here, where rows have shorter names."""

number = partial(format_number, digits=3)


@dataclass(frozen=True)
class Problem:
    """One line of the table over all problems.

    Arguments:
        study: The folder of its results.
        words: What the problem is called.
        measure: What is compared, in words.
        metric: The same by its name in the vocabulary; less is better.
        factors: The metric that counts factors.
        condition: The condition of its rows, where they have one.
    """

    study: str
    words: str
    measure: str = "MSE of the mean"
    metric: str = "mse_mean"
    factors: str = "nnz"
    condition: str = ""

    def rows(self, results: Path) -> list[Row]:
        """Return the numbers that were measured under its condition."""
        found = _read(results, self.study)["rows"]
        rows = [Row(**{"preset": "", **row}) for row in found]
        return [row for row in rows if row.condition == self.condition]


PROBLEMS = (
    Problem(
        "gaussian", "linear Gaussian", "KL to the exact posterior, nats", "kl_exact", "active"
    ),
    Problem("mnist", "MNIST, blind inpainting"),
    Problem("heat", "heat equation, no noise", condition="noise=0"),
    Problem("heat", "heat equation, 5 % noise", condition="noise=0.05"),
    Problem("ct", "chest CT, 0-10 % noise"),
    Problem("ct-quarter", "a quarter of it"),
)

PRESETS = ("paper", "calibrated", "anchored")
"""The presets with a column, the default of fit last."""

COVERAGE = {"calibrated": "coverage_90_with_noise", "anchored": "coverage_90"}
"""The coverage of a preset's samples with its noise, which those of the default have anyhow."""


OWN = ("own", "problems")
"""The studies of the defaults of fit."""


def _read(results: Path, study: str) -> dict[str, Any]:
    return json.loads((results / study / "summary.json").read_text(encoding="utf-8"))


def _find(rows: list[Row], preset: str, metric: str) -> Row | None:
    found = (row for row in rows if (row.preset, row.metric) == (preset, metric))
    return next((row for row in found if row.model == "vsPAIR"), None)


def _best_baseline(problem: Problem, rows: list[Row]) -> Row:
    others = (row for row in rows if row.model not in (*OURS, *EXACT) and not row.preset)
    return min((row for row in others if row.metric == problem.metric), key=lambda row: row.value)


def _answer(problem: Problem, rows: list[Row], preset: str) -> str:
    """Return the error of a preset, with all that must not be left out of the same line."""
    row = _find(rows, preset, problem.metric)
    if row is None:
        return "-"
    words = [number(row.value) + ("" if row.spread is None else f" ± {row.spread:.2g}")]
    sample = _find(rows, preset, "mse_sample")
    if sample and sample.paper and not row.paper:
        words.append(f"a sample {number(sample.value)}")
    done, planned = (_find(rows, preset, name) for name in ("epochs", "epochs_planned"))
    if done and planned and done.value < planned.value:
        words.append(f"{done.value:,.0f} of {planned.value:,.0f} epochs")
    return "; ".join(words)


def _printed(problem: Problem, rows: list[Row]) -> str:
    found = (_find(rows, "paper", metric) for metric in (problem.metric, "mse_sample"))
    return number(next((row.paper for row in found if row and row.paper), None))


def _line(problem: Problem, results: Path) -> list[str]:
    rows = problem.rows(results)
    best = _best_baseline(problem, rows)
    baseline = f"{NAMES.get(best.model, best.model)}: {number(best.value)}"
    ours = [_find(rows, preset, problem.metric) for preset in PRESETS]
    errors = [best.value, *(row.value if row else float("inf") for row in ours)]
    cells = [baseline, *(_answer(problem, rows, preset) for preset in PRESETS)]
    least = errors.index(min(errors))
    cells[least] = f"**{cells[least]}**"
    more = {preset: _factors_and_coverage(problem, rows, preset) for preset in COVERAGE}
    return [
        problem.words,
        problem.measure,
        cells[0],
        _printed(problem, rows),
        *cells[1:3],
        *more["calibrated"],
        cells[3],
        *more["anchored"],
    ]


def _factors_and_coverage(problem: Problem, rows: list[Row], preset: str) -> list[str]:
    """Return how many factors the answers of a preset have, and what its intervals cover."""
    factors = _find(rows, preset, problem.factors)
    covered = _find(rows, preset, COVERAGE[preset])
    return [
        "-" if factors is None else f"{factors.value:,.0f}",
        "-" if covered is None else f"{100 * covered.value:.0f} %",
    ]


def _made_by(results: Path, study: str) -> str:
    """Return the line that says where the numbers of a study come from."""
    found = _read(results, study)
    rows = [row for row in found["rows"] if row["model"] == "vsPAIR"]
    lines = []
    for made in found.get("made", [{**found, "methods": []}]):
        own = [r for r in rows if f"vsPAIR ({r.get('preset')})" in made["methods"]] or rows
        seeds = max(row["seeds"] for row in own)
        count = "one seed" if seeds == 1 else f"{seeds} seeds where there is a ±, else one"
        lines.append(f"`{made['command']}`, commit {made['commit']}, {made['machine']}, {count}")
    return f"- {study}: {'; later '.join(lines)}"


def _overview(results: Path) -> str:
    columns = [
        "problem", "measure, less is better", "best baseline", "the paper prints",
        "ours, preset `paper`", "ours, preset `calibrated`", "its factors",
        "its 90 % interval covers", "ours, default (`anchored`)", "its factors",
        "its 90 % interval covers",
    ]  # fmt: skip
    there = [problem for problem in PROBLEMS if (results / problem.study).is_dir()]
    table = Table(columns, [_line(problem, results) for problem in there])
    studies = dict.fromkeys(problem.study for problem in there)
    made = [_made_by(results, study) for study in studies]
    return "\n".join([table.markdown(), "", "Made by", "", *made])


def _own(results: Path, study: str) -> str:
    """Return the defaults of fit beside simple methods, with a line for each set of pairs."""
    rows = [Row(**{"preset": "", **row}) for row in _read(results, study)["rows"]]
    found = {(r.condition, r.model, r.metric): r.value for r in rows}

    def cell(name: str, model: str, metric: str, form: str = ".3g") -> str:
        value = found.get((name, model, metric))
        return "-" if value is None else format(value, form).replace("%", " %")

    simple = {"ridge": "ridge", "network": "plain network", "trivial-y": "y itself"}
    lines = []
    for name in dict.fromkeys(row.condition for row in rows):
        own = [cell(name, "vsPAIR", "mse_mean"), *(cell(name, m, "mse_mean") for m in simple)]
        ratios = [cell(name, "vsPAIR", f"{m}_over_best_simple", ".2f") for m in ("mse", "crps")]
        more = [("coverage_90", ".0%"), ("active", ".3g"), ("share_in_factors", ".0%")]
        lines.append([name, *own, *ratios, *(cell(name, "vsPAIR", *each) for each in more)])
    columns = [
        "pairs", "MSE of ours", *simple.values(), "MSE over the best simple",
        "CRPS over the best simple", "90 % intervals cover", "factors", "of the doubt in factors",
    ]  # fmt: skip
    return "\n".join(
        [Table(columns, lines).markdown(), "", "Made by", "", _made_by(results, study)]
    )


def tables(results: Path) -> dict[str, str]:
    """Return the text that belongs between each pair of markers, by their name.

    Arguments:
        results: The folder of results, one folder a study with its ``summary.json``.
    """
    own = {study: _own(results, study) for study in OWN if (results / study).is_dir()}
    return {"results": _overview(results), "vocabulary": vocabulary.table(), **own}


def fill(text: str, found: dict[str, str]) -> str:
    r"""Return a text with what stands between its markers replaced.

    Example:
        >>> fill("<!-- begin: a -->old<!-- end: a -->", {"a": "new"})
        '<!-- begin: a -->\n\nnew\n\n<!-- end: a -->'
    """

    def replace(match: re.Match[str]) -> str:
        if match[1] not in found:
            raise VspairError(
                f"<!-- begin: {match[1]} -->: expected the name of a table, one of "
                f"{', '.join(found)}."
            )
        return f"<!-- begin: {match[1]} -->\n\n{found[match[1]]}\n\n<!-- end: {match[1]} -->"

    return re.sub(r"<!-- begin: (\w+) -->.*?<!-- end: \1 -->", replace, text, flags=re.DOTALL)


def write(readme: Path, results: Path) -> None:
    """Fill the markers of one Markdown file.

    Arguments:
        readme: The file.
        results: The folder of results.
    """
    text = readme.read_text(encoding="utf-8")
    readme.write_text(fill(text, tables(results)), encoding="utf-8")


if __name__ == "__main__":
    for path in (Path("README.md"), *sorted(Path("docs").rglob("*.md"))):
        write(path, Path("results"))
