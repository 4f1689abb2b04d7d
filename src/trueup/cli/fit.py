"""`trueup fit`: files or a query to a model that corrects scores."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.calibrators.maps.patches import Patches
from trueup.cli import console, reasons
from trueup.cli.heldout import check_held_out, need_held_out, write_held_out
from trueup.cli.methods import feature_names, make_recipe
from trueup.cli.output import check_output, file_size, files_in_query
from trueup.cli.reading import check_positive, find_columns, name_scan, need_rows, read_table
from trueup.cli.terminal import show_page
from trueup.cli.told import correction_grid, json_of, model_data, patch_grid
from trueup.cli.validation import check_validation, read_validation
from trueup.data.paths import find_files
from trueup.errors import ArgumentError, DataError
from trueup.modelfile import load, save
from trueup.storage import write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from trueup.calibrators.model import Model
    from trueup.cli.terminal import Grid
    from trueup.data.table import Table

EXAMPLE = "model.trueup"
IN_PIECES = "mcgrad"  # what --memory is for
SHOWN = 5


def run(arguments: argparse.Namespace) -> int:
    """Fit, save, say what was done; give the exit code."""
    need_rows(arguments)
    _check_together(arguments)
    sources = [*(find_files(arguments.files).paths if arguments.files else []), *files_in_query(arguments.sql)]
    sources += check_validation(arguments)
    check_output(arguments.output, sources, example=EXAMPLE)
    if arguments.json not in (None, "-"):
        check_output(arguments.json, [*sources, arguments.output], example="fit.json")
        if Path(arguments.json).resolve() == Path(arguments.output).resolve():
            raise ArgumentError(f"--json {arguments.json} would overwrite the model", hint="name another file")
    check_held_out(arguments, sources)
    _check_resume(arguments, sources)
    with console.Watch(quiet=arguments.quiet, verbose=arguments.verbose) as watch:
        watch.say("reading")
        with _keeping(arguments, watch):
            recipe, table = (_fit if arguments.memory is None else _fit_in_pieces)(arguments, watch)
        watch.note(*reasons.of_fit(recipe.model_, recipe))
        need_held_out(recipe, arguments)
        watch.say("writing")
        held = None if arguments.held_out is None else write_held_out(recipe, table, arguments)
        save(recipe, arguments.output)
        model = load(arguments.output)
    if arguments.json is not None:
        found = {"file": arguments.output, **model_data(model), **_more_data(recipe)}
        found |= {} if held is None else {"held_out": {"file": arguments.held_out, "rows": held}}
        if arguments.json == "-":
            console.emit(lambda stream: stream.writelines(json_of(found)), data=True)
            return 0
        write_text(arguments.json, json_of(found))
    if arguments.quiet:
        console.say(model.history.reason)
    else:
        show_page([*_page(model, table, recipe), *_next(arguments, model, held)])
    return 0


@contextlib.contextmanager
def _keeping(arguments: argparse.Namespace, watch: console.Watch) -> Iterator[None]:
    """Say that finished rounds are taken from a file, and after Ctrl-C that they are kept in it."""
    if arguments.resume is not None and Path(arguments.resume).exists():
        watch.note(f"rounds that were finished before are taken from {arguments.resume}")
    try:
        yield
    except KeyboardInterrupt:
        if arguments.resume is not None and Path(arguments.resume).exists():
            console.complain(f"finished rounds are kept in {arguments.resume}: the same command goes on from there")
        raise


def _fit(arguments: argparse.Namespace, watch: console.Watch) -> tuple[Any, Table]:
    table = read_table(arguments, feature_names(arguments), "feature")
    validation = read_validation(arguments, table)
    watch.note(*reasons.of_table(arguments, table))
    watch.say("fitting")
    recipe = make_recipe(arguments, table.schema, validation)
    # How many steps there will be, only a choice among methods knows.
    recipe.fit_table(table, watch.step if arguments.method == "auto" else counting(watch, "fitting"))
    return recipe, table


def _check_together(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if arguments.memory is None:
        if arguments.spill is not None:
            raise ArgumentError("--spill goes with --memory", hint="say how much may be held at once, such as --memory 2GB")
        return
    if arguments.method != IN_PIECES:
        raise ArgumentError(
            f"--memory is for the method {IN_PIECES}; {arguments.method} takes rows in memory",
            hint="leave --memory out, or fit a sample of the rows with --sql",
        )
    if arguments.held_out is not None:
        raise ArgumentError(
            "--held-out and --memory exclude each other: the rows that judged are not held in memory",
            hint="name rows that judge with --validation, and score them with trueup predict",
        )


def _check_resume(arguments: argparse.Namespace, sources: Sequence[str | Path]) -> None:
    """Refuse to keep finished rounds in a file that something else is read from or written to."""
    if arguments.resume is None:
        return
    check_output(arguments.resume, sources, example="fit.rounds")
    for other, what in ((arguments.output, "the model"), (arguments.json, "what --json writes")):
        if other not in (None, "-") and Path(other).resolve() == Path(arguments.resume).resolve():
            raise ArgumentError(f"--resume {arguments.resume} would overwrite {what}", hint="name another file")


def _fit_in_pieces(arguments: argparse.Namespace, watch: console.Watch) -> tuple[Any, Table]:
    """Fit files that need not fit in memory; give a sample of their rows, too."""
    from trueup.calibrators.mcgrad.apart import check_room, fit_apart
    from trueup.calibrators.mcgrad.facts import facts_of
    from trueup.cluster.files import open_scan_partitions

    columns = find_columns(arguments)
    prediction = columns.several(arguments.prediction, "prediction")
    check_positive(arguments, prediction)
    rows = name_scan(arguments, columns, prediction, feature_names(arguments), "feature")
    features = rows.roles.pop("by")
    with open_scan_partitions(rows.scan, prediction=rows.score(prediction), features=features, **rows.roles) as parts:
        if arguments.validation is None:
            check_room(parts, make_recipe(arguments, parts.schema).stopping, to_allow=_to_allow)
        facts = facts_of(parts, arguments.seed)
        table = facts.sample
        if arguments.positive is not None and facts.seen.highest == 0:
            raise DataError(
                f"no row that counts has the outcome {arguments.positive!r} in column {rows.roles['outcome']!r}",
                hint="is it written in another way there?",
            )
        validation = read_validation(arguments, table)
        watch.note(*reasons.of_table(arguments, table, len(facts)))
        watch.say("fitting")
        recipe = make_recipe(arguments, table.schema, validation)
        fit_apart(recipe, parts, counting(watch, "fitting"), facts, _to_allow)
    return recipe, table


def _to_allow(memory: str, models: int) -> str:
    """Say what to do where rows do not fit."""
    fewer = f", judge by one model in place of {models} (--validation)" if models > 1 else ""
    return f"allow more (--memory {memory}){fewer}, or fit some of the rows (--sql)"


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


def _page(model: Model, table: Table, recipe: Any) -> list[str | Grid]:
    info, history, explanation = model.info(), model.history, model.explanation
    features = f"{len(info.features)} feature{'' if len(info.features) == 1 else 's'}"
    patched = isinstance(model.map, Patches)
    by = "each patch by rows that did not set its size" if patched else "every row by a model that has not seen it"
    judged = f"{history.evaluated_on}: {by}"
    parts: list[str | Grid] = [
        history.reason,
        f"{info.method} on {info.rows:,} rows and {features if info.features else 'the score alone'}; judged by "
        f"{judged if history.evaluated_on == 'cross-validation' else history.evaluated_on}",
    ]
    parts += [f"column {name} left out: {reason}" for name, reason in table.left_out.items()]
    if table.unlabelled:
        parts.append(f"{table.unlabelled:,} rows without an outcome were set aside")
    if explanation.corrections:
        shown = min(SHOWN, len(explanation.corrections))
        some = "" if explanation.rows == info.rows else f" (figures of {explanation.rows:,} rows, drawn at random)"
        parts += [
            f"scores moved by {explanation.moved:.2g} on average{some}; the "
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
    return parts


def _next(arguments: argparse.Namespace, model: Model, held: int | None) -> list[str]:
    """Say what was written, and name the commands that go on with it, on rows that are new."""
    file = shlex.quote(arguments.output)
    lines = ["", f"wrote {arguments.output} ({model.info().map}; {file_size(arguments.output)})"]
    if held is not None:
        lines.append(f"wrote {arguments.held_out}: {held:,} rows, each scored by a model that has not seen it")
    if arguments.json is not None:
        lines.append(f"wrote {arguments.json}")
    lines += ["next:", f"  trueup predict {file} new.parquet -o scored.parquet"]
    if held is not None:
        roles = f"--prediction {shlex.quote(f'{model.schema.prediction[0]}_trueup')} --cost-fn X --cost-fp Y"
        weight = "" if arguments.weight is None else f" --weight {shlex.quote(arguments.weight)}"
        known = f"--labelled {shlex.quote(arguments.held_out)} --outcome {shlex.quote(arguments.outcome)}{weight}"
        lines.append(f"  trueup decide scored.parquet {roles} {known}")
    return [*lines, f"  trueup explain {file}"]
