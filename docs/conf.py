"""Sphinx: the pages of this folder to a static site. `make docs` builds it, and every warning is an error."""

import re
from importlib.metadata import version as version_of
from pathlib import Path

project = "trueup"
author = "the trueup authors"
copyright = author  # noqa: A001  (Sphinx's name for it)
version = release = version_of("trueup")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
myst_heading_anchors = 3  # [text](page.md#heading) is checked, too

# Docstrings are numpydoc; what they say of types is prose, so signatures carry names and defaults alone.
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # keeps the underscore of names such as model_
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autosummary_generate = True
default_role = "py:obj"

html_theme = "furo"
html_title = "trueup"
html_static_path = ["_static"]
html_css_files = ["trueup.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7ab8ff", "color-brand-content": "#7ab8ff"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

FOREIGN = ("sklearn", "builtins", "typing", "collections")
INSIDE = ("build", "fit_table", "predict_table")  # for other parts of trueup


def not_ours(_app, _what, name, member, skip, _options):
    """Leave out what classes inherit from other packages: it is documented there."""
    module = getattr(member, "__module__", None) or getattr(getattr(member, "__objclass__", None), "__module__", "") or ""
    return True if module.split(".")[0] in FOREIGN or name in INSIDE or name.endswith("_request") else skip


def plain_bars(_app, _what, _name, _object, _options, lines):
    """Let ``|x|`` in a docstring be what it is in mathematics; reStructuredText takes it for the name of something."""
    example = False
    for at, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            parts = re.split("(``.*?``)", line)
            lines[at] = "".join(part if part.startswith("``") else part.replace("|", "\\|") for part in parts)


written = {}


def keep_sentence(_app, what, name, _object, _options, lines):
    """Remember the docstring of a property: napoleon would take what stands before a colon for its type."""
    if what in ("attribute", "property"):
        written[name] = list(lines)


def give_sentence(_app, _what, name, _object, _options, lines):
    """Give it back when napoleon is done."""
    lines[:] = written.pop(name, lines)


def no_last_line(_app, _name, source):
    """Drop the empty line that ends an example: doctest needs it, readers do not."""
    source[0] = re.sub(r"\n\n```$", "\n```", source[0], flags=re.MULTILINE)


def link_reports(app, name, source):
    """Link to the reports of the gallery if `make gallery` has written them; a code host, which lacks them, shows names."""
    here = Path(app.srcdir, name).parent
    source[0] = re.sub(
        r"`(reports/\w+\.html)`", lambda found: f"[{found[1]}]({found[1]})" if (here / found[1]).exists() else found[0], source[0]
    )


def open_reports(_app, _name, _template, context, _doctree):
    """Open reports in the browser rather than saving them."""
    context["body"] = context.get("body", "").replace(' download=""', "")


def setup(app):
    """Tell Sphinx."""
    app.connect("source-read", no_last_line)
    app.connect("source-read", link_reports)
    app.connect("html-page-context", open_reports)
    app.connect("autodoc-skip-member", not_ours)
    app.connect("autodoc-process-docstring", plain_bars, priority=400)  # before napoleon makes fields of it
    app.connect("autodoc-process-docstring", keep_sentence, priority=450)
    app.connect("autodoc-process-docstring", give_sentence, priority=900)
