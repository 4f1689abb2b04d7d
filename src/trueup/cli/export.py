"""`trueup export`: write a model as an ONNX graph, an SQL statement or a C header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.cli import console, io
from trueup.cli.output import model_notes
from trueup.exports import CERTIFICATE_SUFFIX, export
from trueup.modelfile import load

if TYPE_CHECKING:
    import argparse

EXAMPLE = "model.onnx"


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    output = arguments.output
    io.check_is_file(output, example=EXAMPLE)
    io.check_outputs([(output, EXAMPLE), (f"{output}{CERTIFICATE_SUFFIX}", EXAMPLE)], [arguments.model])
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        model = load(arguments.model)
        progress.note(*model_notes(model))
        progress.start("exporting")
        certificate = export(
            model, output, to=arguments.to, dialect=arguments.dialect, table=arguments.table,
            keep=io.split_names(arguments.keep or []), prefix=arguments.prefix, verify=arguments.verify,
        )  # fmt: skip
    if arguments.quiet:
        return 0
    console.say(f"wrote {output} ({io.file_size(output)})")
    if certificate is None:
        console.say("not compared with the model")
        return 0
    console.say(repr(certificate))
    for note in certificate.notes:
        console.say(f"note: {note}")
    console.say(f"wrote {output}{CERTIFICATE_SUFFIX}")
    return 0
