"""`trueup fit`: files or a query to a model that corrects scores."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.calibrators.maps.patches import Patches
from trueup.cli import console
from trueup.cli.methods import feature_names, make_recipe
from trueup.cli.output import check_output, file_size
from trueup.cli.reading import need_rows, read_table
from trueup.cli.terminal import show_page
from trueup.cli.told import correction_grid, json_of, model_data, patch_grid
from trueup.data.paths import find_files
from trueup.errors import ArgumentError
from trueup.modelfile import load, save
from trueup.reports.output import write_whole

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from trueup.calibrators.model import Model
    from trueup.cli.terminal import Grid
    from trueup.data.table import Table

__all__ = ["counting", "run"]

EXAMPLE = "model.trueup"
SHOWN = 5


def run(arguments: argparse.Namespace) -> int:
    """Fit, save, say what was done; give the exit code."""
    need_rows(arguments)
    sources = find_files(arguments.files).paths if arguments.files else []
    check_output(arguments.output, sources, example=EXAMPLE)
    if arguments.json not in (None, "-"):
        check_output(arguments.json, [*sources, arguments.output], example="fit.json")
        if Path(arguments.json).resolve() == Path(arguments.output).resolve():
            raise ArgumentError(f"--json {arguments.json} would overwrite the model", hint="name another file")
    with console.Watch(quiet=arguments.quiet) as watch:
        watch.say("reading")
        table = read_table(arguments, feature_names(arguments), "feature")
        watch.say("fitting")
        recipe = make_recipe(arguments, table)
        recipe.fit_table(table, counting(watch, "fitting"))
        watch.say("writing")
        save(recipe, arguments.output)
        model = load(arguments.output)
    if arguments.json is not None:
        found = {"file": arguments.output, **model_data(model), **_more_data(recipe)}
        if arguments.json == "-":
            console.emit(lambda stream: stream.writelines(json_of(found)))
            return 0
        write_whole(arguments.json, json_of(found))
    if arguments.quiet:
        console.say(model.history.reason)
    else:
        show_page([*_page(model, arguments, table, recipe), *([f"wrote {arguments.json}"] if arguments.json else [])])
    return 0


def counting(watch: console.Watch, what: str) -> Callable[[int, int], None]:
    """Make a progress that shows the steps so far, over all rounds: how many there will be, nobody knows before."""
    before = last = 0

    def progress(done: int, _: int) -> None:
        nonlocal before, last
        before += last if done < last else 0
        last = done
        watch.say(f"{what}: {before + done:,} steps")

    return progress


def _more_data(recipe: Any) -> dict[str, Any]:
    """Give as plain data what only the fit knows: the methods that were compared, and what is left to be had."""
    told = {"choice": getattr(recipe, "choice_", None), "saturation": getattr(recipe, "saturation_", None)}
    return {name: found.to_dict() for name, found in told.items() if found is not None}


def _page(model: Model, arguments: argparse.Namespace, table: Table, recipe: Any) -> list[str | Grid]:
    info, history, explanation = model.info(), model.history, model.explanation
    features = f"{len(info.features)} feature{'' if len(info.features) == 1 else 's'}"
    patched = isinstance(model.map, Patches)
    by = "each patch by rows that did not set its size" if patched else "every row by a model that has not seen it"
    judged = f"{history.judged_by}: {by}"
    parts: list[str | Grid] = [
        history.reason,
        f"{info.method} on {info.rows:,} rows and {features if info.features else 'the score alone'}; judged by "
        f"{judged if history.judged_by == 'cross-validation' else history.judged_by}",
    ]
    parts += [f"column {name} left out: {reason}" for name, reason in table.left_out.items()]
    if table.unlabelled:
        parts.append(f"{table.unlabelled:,} rows without an outcome were set aside")
    if explanation.corrections:
        shown = min(SHOWN, len(explanation.corrections))
        parts += [
            f"scores moved by {explanation.moved:.2g} on average; the "
            f"{'largest correction' if shown == 1 else f'{shown} largest corrections'}:",
            "",
            correction_grid(explanation, SHOWN),
        ]
    if isinstance(model.map, Patches) and model.map.patches:
        parts += ["", "patches, in order:", patch_grid(model.map.listed, SHOWN)]
    if getattr(recipe, "choice_", None) is not None:
        lines = repr(recipe.choice_).splitlines()
        table_at = next((at for at, line in enumerate(lines) if line.split()[:1] == ["method"]), len(lines))
        parts += ["", *lines[table_at:]]  # the sentence above the table is said already
    model_file, source = shlex.quote(arguments.output), " ".join(map(shlex.quote, arguments.files)) or "FILE"
    return [
        *parts,
        "",
        f"wrote {arguments.output} ({info.map}; {file_size(arguments.output)}); next:",
        f"  trueup predict {model_file} {source} -o scored.parquet",
        f"  trueup explain {model_file}",
    ]
