"""Where the rows of a command come from: files by name, size and digest, and the command itself."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.audits.result import Source
from trueup.data.paths import find_files
from trueup.errors import FileError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from trueup.cli.console import Watch

LARGEST = 4_000_000_000  # bytes: above, a digest would take longer than the audit
NOT_TAKEN = f"not taken: over {LARGEST // 10**9} GB"
AT_ONCE = 1 << 22
# What a query needs to reach other machines must not go where a page goes: the query is left out as a whole.
SECRET = re.compile(
    r"""(?:passw|passphrase|\bpass\b|\bpw\b|pwd|secret|token|credential|cookie|key_id|signature
        |(?:api|access|account|private|encryption|parquet|master|shared)[-_]?key)[\w-]*
        (?:\s|/\*(?:[^*]|\*(?!/))*\*/)*(?:to\b\s*)?e?[=:'"($]
    |[?&][^\s'"&=]*(?:key|auth|sig)[^\s'"&=]*=           # in an address
    |\bsig=|authorization|bearer\s|connection_?string
    |\bA[KS]IA[0-9A-Z]{16}\b                            # a key of Amazon's
    |://[^\s/'"]*@|://[^\s/'":]+:[^\s'"]*@              # a name and a password before the host
    """,
    re.IGNORECASE | re.VERBOSE,
)
LEFT_OUT = "(left out: it may hold a password or a key)"


def command_of(arguments: argparse.Namespace) -> str:
    """Write the command as it was typed, but for a query that may hold a password, and the name of the home folder.

    Examples
    --------
    >>> import argparse
    >>> command_of(argparse.Namespace(words=["audit", "my scores.csv", "--outcome", "y"]))
    "trueup audit 'my scores.csv' --outcome y"
    >>> command_of(argparse.Namespace(words=["audit", "--sql", "ATTACH 'host=db password=x' AS db; FROM db.scores"]))
    "trueup audit --sql '(left out: it may hold a password or a key)'"
    """
    return _told(arguments.words)


def _told(words: Sequence[str]) -> str:
    return " ".join(["trueup", *map(_at_home, _without_secrets(words))])


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in words:
        if before == "--sql" and SECRET.search(word):
            yield LEFT_OUT
        elif word.startswith("--sql=") and SECRET.search(word):
            yield f"--sql={LEFT_OUT}"
        else:
            yield word
        before = word


def _at_home(word: str) -> str:
    """Quote a word for the shell; a path below the home folder begins with ~ again, as it was mostly typed."""
    try:
        home = f"{Path.home()}/"
    except RuntimeError:  # nobody knows where it is
        home = "//"
    return f"~/{shlex.quote(word.removeprefix(home))}" if word.startswith(home) and word != home else shlex.quote(word)


def find_source(arguments: argparse.Namespace, watch: Watch, fit: Sequence[str] = ()) -> Source:
    """Digest the files, of which only the name is kept; a query may read others, and names them itself.

    ``fit`` are the words of the command that fits a correction on the same rows.
    """
    paths = find_files(arguments.files).paths if arguments.files else []
    sizes = [path.stat().st_size for path in paths]
    files = []
    for at, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        digest = NOT_TAKEN if size > LARGEST else _digest(path, watch, sum(sizes[:at]), sum(sizes))
        files.append((path.name, size, digest))
    return Source(tuple(files), command_of(arguments), _told(fit) if fit else "")


def _digest(path: Path, watch: Watch, done: int, total: int) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while part := stream.read(AT_ONCE):
                found.update(part)
                done += len(part)
                watch.step(min(done, total), total)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}", hint="check the path and its rights") from error
    return found.hexdigest()
