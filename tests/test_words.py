"""What studies say: every metric of a table has a meaning, and no text is left over."""

from pathlib import Path

import pytest

from vspair import studies, vocabulary
from vspair.studies.words import read_words

FOLDERS = sorted(path.parent for path in Path(studies.__path__[0]).glob("*/words.toml"))
every = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def test_every_study_has_words() -> None:
    names = [folder.name for folder in FOLDERS]
    expected = "ablations ct ct_sweeps demo gaussian heat mnist own problems sbibm"
    assert names == expected.split()


@every
def test_every_metric_is_in_the_vocabulary(folder: Path) -> None:
    words = read_words(folder.name)
    keys = [key for place in (words.tables | words.labels).values() for key in place]
    keys += [key for printed in words.paper.values() for key in printed]
    assert all(vocabulary.look_up(key.partition(", ")[0]) for key in keys)  # with its condition


@every
def test_every_text_is_said(folder: Path) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert [name for name in read_words(folder.name).text if f'"{name}"' not in code] == []


def test_lines_of_a_paragraph_are_joined() -> None:
    words = read_words("gaussian")
    assert words.text["report"].startswith("Medians over {seeds} seeds (each its own operator, ")
    assert "half the distance of the quartiles" in words.text["report"]
    assert "\n\n{table}\n\n`trivial-prior` answers" in words.text["report"]
    assert not any("\n" in caption for caption in words.captions.values())
