"""How the documentation is built: Sphinx from the root of the repository, by ``make docs``.

The source is the whole repository, so that links between docs/ and results/ are the same on the
site as where the files are read by themselves. Formulas become MathML in the build, which
browsers show without a script or a font from elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
LITERAL = re.compile(r"(``.*?``|`[^`]*`)")
STAR = re.compile(r"\\*(?<!\*)\*(?!\*)(?!\w[\w -]*\*)(?<!\w\*)")

project = "vspair"
author = "the vspair authors"
root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
# Not looked through, and results of smaller runs, which belong to whoever made them.
exclude_patterns = [
    ".*", "build", "demo", "runs", "site", "src", "tests",
    "results/*-smoke*", "results/*-part*", "results/*-phantoms*", "results/*-unit*",
]  # fmt: skip
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

html_theme = "furo"
html_title = "vspair"
html_extra_path = ["index.html"]
html_css_files = ["site.css"]
html_static_path = ["static"]
html_math_renderer = "mathml"
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

add_module_names = False
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88


def _packages() -> dict[str, list[str]]:
    """Return the parts of the library, each with the modules that its page describes."""
    source = ROOT / "src" / "vspair"
    pages = {}
    for path in sorted(source.glob("[a-z]*")):
        if path.suffix == ".py":
            pages[path.stem] = [f"vspair.{path.stem}"]
        elif (path / "__init__.py").exists():
            names = (".".join(f.relative_to(ROOT / "src").parts) for f in path.rglob("*.py"))
            pages[path.name] = sorted(
                n.removesuffix(".py").removesuffix(".__init__") for n in names
            )
    return pages


def _module(name: str) -> str:
    """Return the part of a page that describes one module."""
    folder = (ROOT / "src" / name.replace(".", "/")).is_dir()
    # What a package only passes on is described where it is defined.
    option = "   :ignore-module-all:\n" if folder else ""
    head = f"\n## {name}\n" if name.count(".") > 1 else ""
    return f"{head}\n```{{eval-rst}}\n.. automodule:: {name}\n{option}```\n"


def _write_reference(app: Sphinx) -> None:
    """Write one page for each part of the library; what has not changed is left alone."""
    folder = ROOT / "docs" / "api"
    folder.mkdir(exist_ok=True)
    for name, modules in _packages().items():
        text = f"# vspair.{name}\n" + "".join(map(_module, modules))
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
    for page in folder.glob("*.md"):
        if page.stem not in _packages():
            page.unlink()


def _prepare_docstring(
    app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Let the stars of shapes such as (B, *x_shape) be stars, and those of *emphasis* not."""
    if kind in ("attribute", "data", "property"):
        lines.insert(0, "\\ ")  # nothing; else words before a colon would be read as a type
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", ".. math::")):
            parts = LITERAL.split(line)
            parts[::2] = [STAR.sub(r"\\*", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def _trim_examples(app: Sphinx, name: str, source: list[str]) -> None:
    """Leave out the empty line that ends an example, where doctest needs it."""
    if name.startswith("docs/"):
        source[0] = source[0].replace("\n\n```\n", "\n```\n")


def _formula(writer: Any, node: nodes.Element, display: str) -> None:
    from latex2mathml.converter import convert

    formula = convert(node.astext(), display=display)
    writer.body.append(f'<div class="formula">{formula}</div>' if display == "block" else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Add the reference's pages and the formulas."""
    app.connect("builder-inited", _write_reference)
    app.connect("source-read", _trim_examples)
    app.connect("autodoc-process-docstring", _prepare_docstring, priority=400)
    app.add_html_math_renderer(
        "mathml",
        (lambda writer, node: _formula(writer, node, "inline"), None),
        (lambda writer, node: _formula(writer, node, "block"), None),
    )
