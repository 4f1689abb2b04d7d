"""The command as a process: pipes, terminals, interrupts, and control characters."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import ROLES, interrupted, run
from trueup.cli import console, main
from trueup.cli.console import ProgressDisplay

GATE = r"gate failed \(exit code 1\): miscalibrated: \d+ of \d+ segments \(--fail-if miscalibrated\)\n"


def command(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "trueup", *arguments], capture_output=True, text=True, timeout=120, check=False, **more
    )


def hostile_file(directory: Path) -> Path:
    names = ["\x1b[31mred\x07", "[red]x[/red] :smile:", "<script>alert(1)</script>", "‮evil", "y" * 10_000, "עברית 👩"]
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.4, 600)
    factor = np.repeat([2.5, 2, 0.1, 0.1, 2.2, 0.1], 100)  # every name is a problem of its own
    data = {
        "outcome": (rng.random(600) < factor * p) * 1,
        "prediction": p,
        "g": [name for name in names for _ in range(100)],
    }
    pl.DataFrame(data).write_parquet(directory / "hostile.parquet")
    return directory / "hostile.parquet"


def test_control_characters_of_names_are_replaced(tmp_path, capsys):
    code, out, err = run(capsys, str(hostile_file(tmp_path)), *ROLES)
    assert code == 0
    assert "\x1b" not in out + err
    assert "‮" not in out + err
    assert "g=[red]x[/red] :smile:" in out
    assert max(map(len, out.splitlines())) < 400


def test_control_characters_of_arguments_are_replaced(loans_directory, capsys):
    for arguments in (
        ["\x1b[31m.parquet", *ROLES],
        ["loans.parquet", *ROLES, "--\x1b[31m"],
        ["loans.parquet", *ROLES, "--by", "\x1b[31m"],
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 2
        assert "\x1b" not in out + err


# Each command finds a terminal of its own width and its own variables of the environment.
IN_A_TERMINAL = """
import fcntl, json, os, struct, sys, termios
from trueup.cli import main
for arguments, columns, variables in json.loads(sys.argv[1]):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    os.environ |= variables
    main(arguments)
    print(end="\\x1e", flush=True)
"""


def in_a_terminal(*commands: tuple[list[str], int, dict[str, str]], cwd: Path) -> list[str]:
    """Run commands in one process on a pseudo-terminal and return what each shows, without progress."""
    main_end, its_end = pty.openpty()
    # A test runner may tell its workers a width of its own; the terminal's is the one to go by.
    surroundings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    surroundings |= {"TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, json.dumps(commands)],
        stdin=its_end,
        stdout=its_end,
        stderr=subprocess.DEVNULL,
        env=surroundings,
        cwd=cwd,
    ) as process:
        os.close(its_end)
        parts = []
        while True:
            try:
                part = os.read(main_end, 65536)
            except OSError:  # what Linux says when the other end is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(main_end)
    assert process.returncode == 0
    *shown, rest = b"".join(parts).decode().split("\x1e")
    assert (len(shown), rest) == (len(commands), "")
    return shown


WIDTHS = [40, 60, 80, 140]


@pytest.fixture(scope="module")
def shown_in_terminals(directory, tmp_path_factory):
    """Return what audits show in terminals: with hostile names, in colour, at four widths, and without colour."""
    hostile = ["audit", str(hostile_file(tmp_path_factory.mktemp("hostile"))), *ROLES]
    loans = ["audit", "loans.parquet", *ROLES, "--by"]
    commands = {
        "hostile": (hostile, 160, {}),
        "colour": ([*loans, "region"], 100, {}),
        **{columns: ([*loans, "region,product"], columns, {}) for columns in WIDTHS},
        "plain": ([*loans, "region"], 100, {"NO_COLOR": "1"}),
    }
    return dict(zip(commands, in_a_terminal(*commands.values(), cwd=directory), strict=True))


def test_markup_in_names_is_shown_literally(shown_in_terminals):
    shown = shown_in_terminals["hostile"]
    assert "g=[red]x[/red] :smile:" in shown
    assert "·[31mred·" in shown
    assert "\x07" not in shown
    assert "‮" not in shown


def test_terminals_get_colour_unless_no_color_is_set(shown_in_terminals):
    assert "\x1b[1;31mmiscalibrated" in shown_in_terminals["colour"]
    plain = shown_in_terminals["plain"]
    assert "\x1b[1;31m" not in plain
    assert "\x1b[31m" not in plain
    assert "miscalibrated" in plain


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_fit_the_terminal(shown_in_terminals, columns):
    shown = re.sub(r"\x1b\[[\d;]*m", "", shown_in_terminals[columns])
    # A command to copy stays on one line, however long it is.
    assert max(len(line.rstrip()) for line in shown.splitlines() if not line.startswith("  trueup ")) <= columns
    assert "adjusted p" in shown
    assert ("95% interval " in shown) == (columns >= 120)


def test_the_progress_bar_appears_only_on_terminals_and_after_a_delay(monkeypatch):
    monkeypatch.setattr(console, "PROGRESS_DELAY_S", 0.4)
    main_end, its_end = pty.openpty()
    with os.fdopen(its_end, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ProgressDisplay(quiet=True) as progress:
            progress.start("quiet work")
            time.sleep(0.8)
        with ProgressDisplay() as progress:
            progress.start("short work")
        with ProgressDisplay() as progress:
            progress.start("[b]long work")
            progress.step(1, 4)
            time.sleep(1.2)
            progress.step(2, 4)
            progress.start("more work")
    shown = os.read(main_end, 65536).decode()
    os.close(main_end)
    assert "[b]long work" in shown
    assert "quiet work" not in shown
    assert "short work" not in shown


def test_the_progress_bar_estimates_the_remaining_time(monkeypatch):
    monkeypatch.setattr(console, "PROGRESS_DELAY_S", 0.1)
    main_end, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    with os.fdopen(its_end, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ProgressDisplay() as progress:
            progress.start("long work")
            for done in range(1, 13):
                progress.step(done, 1000)
                time.sleep(0.1)
    shown = os.read(main_end, 65536).decode()
    os.close(main_end)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown)
    assert re.search(r"0:00:0\d \d\d:\d\d", shown)  # elapsed and remaining


def test_the_steps_of_all_rounds_are_counted(monkeypatch):
    monkeypatch.setattr(console, "PROGRESS_DELAY_S", 0.0)
    main_end, its_end = pty.openpty()
    with os.fdopen(its_end, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ProgressDisplay() as progress:
            progress.start("fitting")
            count = progress.counter()
            for done in (10, 20, 10, 20, 30, 10):
                count(done, 2000)
            time.sleep(0.5)
    shown = os.read(main_end, 65536).decode()
    os.close(main_end)
    assert "fitting: 60 steps" in shown


@pytest.mark.parametrize("named", [True, False])
def test_every_phase_has_its_own_progress(monkeypatch, named):
    monkeypatch.setattr(console, "PROGRESS_DELAY_S", 0.0)
    main_end, its_end = pty.openpty()
    seen = []
    with os.fdopen(its_end, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ProgressDisplay() as progress:
            progress.start("work")
            while progress._bar is None:
                time.sleep(0.01)
            for done in (*range(1, 11), *range(1, 6)):
                if named and done == 1:
                    progress.start(f"work {len(seen)}")
                progress.step(done, 10)
                time.sleep(0.01)
                (task,) = progress._bar.tasks
                seen.append((task.finished, task.completed))
            progress.start("writing")
            (task,) = progress._bar.tasks
            assert (task.finished, task.total, task.time_remaining) == (False, None, None)
    os.close(main_end)
    assert seen == [(done == 10, done) for done in (*range(1, 11), *range(1, 6))]


def accented(directory: Path) -> Path:
    p = np.random.default_rng(0).uniform(0.1, 0.4, 200)
    data = {"outcome": [0, 1] * 100, "prediction": p, "g": ["café"] * 100 + ["日本"] * 100}
    pl.DataFrame(data).write_csv(directory / "letters.csv")
    return directory / "letters.csv"


@pytest.mark.parametrize("kind", ["--csv", "--markdown", "--json"])
def test_data_on_standard_output_is_utf8_whatever_the_terminal(tmp_path, monkeypatch, kind):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["audit", str(accented(tmp_path)), *ROLES, kind, "-"]) == 0
    shown = written.getvalue().decode("utf-8")
    assert "?" not in shown
    assert ("g=café" in shown) or (kind == "--json" and json.loads(shown)["rows"] == 200)


def test_data_to_a_closed_standard_output_is_an_error(tmp_path):
    call = f'"{sys.executable}" -m trueup audit "{accented(tmp_path)}" {" ".join(ROLES)} '
    for words, code, output in (
        (">&-", 0, ""),
        ("--csv - >&-", 2, "error: cannot write to standard output: it is closed\n"),
    ):
        done = subprocess.run(["sh", "-c", call + words], stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr.partition("hint")[0]) == (code, output)


def test_audit_ignores_a_closed_pipe_and_keeps_the_exit_code(loans_directory):
    for arguments in (["--json", "-"], ["--top", "100000"]):
        with subprocess.Popen(
            [sys.executable, "-m", "trueup", "audit", "loans.parquet", *ROLES, "--by", "region,product", "--fail-if", "miscalibrated", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert re.fullmatch(GATE, process.stderr.read().decode())
            assert process.wait() == 1


def test_rows_for_a_reader_that_takes_only_the_first_are_not_said_to_be_written(tmp_path):
    rows = tu.simulate.lending(20_000, seed=0)
    names = ("region", "prediction", "outcome")
    lines = (",".join(map(str, row)) for row in zip(*(rows[name] for name in names), strict=True))
    (tmp_path / "rows.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    model = tmp_path / "m.trueup"
    tu.save(tu.Platt("prediction").fit(rows, rows["outcome"]), model)
    with subprocess.Popen(
        [sys.executable, "-m", "trueup", "predict", str(model), str(tmp_path / "rows.csv"), "-o", "-"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"region,prediction,outcome,prediction_trueup\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_help_ignores_a_closed_pipe():
    with subprocess.Popen(
        [sys.executable, "-m", "trueup", "audit", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_standard_output_is_an_error():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trueup", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_the_process_returns_the_exit_code(loans_directory):
    done = command("audit", "loans.parquet", *ROLES, "--by", "region", "--fail-if", "miscalibrated", "--quiet")
    assert done.returncode == 1
    assert re.fullmatch(GATE, done.stderr)


WORK = """
import sys, time, hashlib
from trueup.cli import console, io, main
console.INTERRUPT_GRACE_S = 0.2
def work(*_, **__):
    print("ready", flush=True)
    {}
io.input_files = work
sys.exit(main(["audit", "x.csv", "--outcome", "y", "--prediction", "p"]))
"""


def test_ctrl_c_exits_with_code_130_without_a_traceback():
    assert interrupted(WORK.format("time.sleep(60)")) == (130, "", "interrupted\n")


def test_ctrl_c_terminates_compiled_code():
    slow = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)"
    assert interrupted(WORK.format(slow)) == (130, "", "interrupted\n")


@pytest.mark.parametrize("work", ["time.sleep(60)", "hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)"])
@pytest.mark.parametrize(
    ("name", "code", "text"),
    [("SIGTERM", 143, "terminated\n"), ("SIGHUP", 129, "terminated: the terminal was closed\n")],
)
def test_signals_exit_with_128_plus_their_number(name, code, text, work):
    assert interrupted(WORK.format(work), getattr(signal, name)) == (code, "", text)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_error_of_compiled_code_after_a_signal_is_the_signal(name):
    wrapped = "\n    try: time.sleep(60)\n    except KeyboardInterrupt: raise SystemError('a result with an exception set')"
    code, out, err = interrupted(WORK.format(wrapped), getattr(signal, name))
    assert (code, out, err.splitlines()[0]) == (128 + getattr(signal, name), "", err.strip())


def test_a_signal_inside_exec_ends_the_process_with_the_code_of_the_signal():
    work = WORK.replace("sys.exit(main([", "sys.argv = ['trueup'] + ([").replace(
        "]))", "])\nfrom trueup.cli import command\ncommand()"
    )
    nested = work.format("exec('time.sleep(60)')")  # Python alone would end with SIGINT
    assert interrupted(nested, signal.SIGTERM) == (143, "", "terminated\n")
    assert interrupted(nested, signal.SIGINT) == (130, "", "interrupted\n")


def test_a_signal_that_the_parent_ignores_stays_ignored():
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + WORK.format("time.sleep(0.3); sys.exit(7)")
    assert interrupted(ignoring, signal.SIGHUP) == (7, "", "")


def test_handlers_are_restored_after_a_command(loans_directory):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    main(["audit", "loans.parquet", *ROLES, "--by", "region", "--quiet"])
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_help_is_quick_and_has_examples():
    taken = []
    for _ in range(5):  # CPU time, and the best of a few: other work may slow a single one
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = command("audit", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(taken) < 0.15
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "--fail-if" in done.stdout


def test_help_imports_nothing_heavy():
    code = "import sys; from trueup.cli import main; main(['audit', '--help']); print(sorted({'numpy', 'rich', 'duckdb', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.skipif(os.name != "posix", reason="there are no such signals")
def test_signals_that_the_caller_handles_do_not_end_the_process(monkeypatch):
    monkeypatch.setattr(console, "INTERRUPT_GRACE_S", 0.05)
    received = []
    before = signal.signal(signal.SIGHUP, lambda number, _: received.append(number))
    try:
        with console.stop_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.3)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == [signal.SIGHUP]
