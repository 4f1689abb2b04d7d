"""C headers compile without warnings, are exact, and are inert whatever columns and levels are called."""

import functools
import itertools
import os
import shutil
import subprocess

import numpy as np
import pytest

import exported
import trueup as tu
from trueup.data.table import Feature, Schema
from trueup.errors import ArgumentError
from trueup.exports import c
from trueup.exports.lower import lower
from trueup.exports.program import Expression, Program, constant

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
MAIN = """
#include <stdio.h>
#include "model.h"
int main(void) {
  loans_row row;
  row.p = 0.25; row.age = 60; row.income = NAN;
  row.country = loans_country_code("BR"); row.device = loans_device_code(NULL);
  printf("%.17g\\n", loans_predict(&row));
  row.p = 2; row.country = 99; row.device = -7;
  printf("%d\\n", isnan(loans_predict(&row)));
  return 0;
}
"""


@functools.cache
def works(compiler, flags):
    command = [compiler, *flags, "-x", "c++" if compiler == "g++" else "c", "-o", os.devnull, "-"]
    main = b"int main(void) { return 0; }"
    return shutil.which(compiler) and subprocess.run(command, input=main, capture_output=True, check=False).returncode == 0


def need(compiler, flags=SANITIZERS):
    """Skip a test, with the reason, if a compiler or its sanitizers are not installed; fail with CI=true."""
    if not works(compiler, flags):
        reason = f"{compiler} {' '.join(flags)} does not work (Debian: apt-get install g++ clang libclang-rt-dev)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def compiler_of_the_check():
    need("gcc", ())


@pytest.mark.parametrize(("name", "compiler"), list(zip(exported.MODELS, itertools.cycle(["gcc", "clang"]), strict=False)))
def test_every_kind_of_model_is_exported_exactly(name, compiler, tmp_path, monkeypatch):
    need(compiler)
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(c, "FLAGS", (*c.FLAGS, *SANITIZERS))
    certificate = tu.export(exported.MODELS[name](), tmp_path / "model.h")
    assert certificate.target == "c"


@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++"])
@pytest.mark.parametrize("flags", [("-O3", "-march=native"), ("-O1", *SANITIZERS)])
def test_a_program_predicts_what_the_model_predicts(compiler, flags, tmp_path):
    need(compiler, flags)
    model = exported.MODELS["mcgrad_trees"]()
    tu.export(model, tmp_path / "model.h", prefix="loans")
    source = tmp_path / ("main.cpp" if compiler == "g++" else "main.c")
    source.write_text(MAIN)
    standard = "-std=c++17" if compiler == "g++" else "-std=c99"
    command = [compiler, standard, *flags, "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "main", source, "-lm"]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    printed = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout.split()
    row = {"p": 0.25, "age": 60, "income": None, "country": "BR", "device": None}
    assert float(printed[0]) == pytest.approx(model.predict_one(row), abs=4e-16)
    assert printed[1] == "1"


REFUSED = [
    (compiler, flag, "IEEE arithmetic") for compiler in ("gcc", "clang") for flag in ("-ffast-math", "-ffinite-math-only")
]
if os.uname().machine == "x86_64":
    REFUSED.append(("gcc", "-mfpmath=387", "double precision"))


@pytest.mark.parametrize(("compiler", "flag", "message"), REFUSED)
def test_arithmetic_that_changes_scores_is_refused(compiler, flag, message, tmp_path):
    need(compiler, ())
    tu.export(exported.MODELS["platt"](), tmp_path / "model.h", verify=False)
    (tmp_path / "main.c").write_text('#include "model.h"\nint main(void) { return 0; }\n')
    command = [compiler, flag, "-o", tmp_path / "main", tmp_path / "main.c", "-lm"]
    assert message in subprocess.run(command, capture_output=True, text=True, check=False).stderr


HOSTILE = ["*/ int x; /*", "double", "a b", "a_b", "1st", "", "ü", 'q"uote\\', "new\nline", "%s??/", "row", "if"]


def test_hostile_names_and_levels_are_inert(tmp_path):
    rng = np.random.default_rng(0)
    levels = np.array(["a", "*/", '"', "\\", "\n", "??/", "%n", "\U0001f600", "7", "\u2028"], object)
    data = {name: rng.choice(levels, 400) for name in HOSTILE[:6]} | {name: rng.random(400) for name in HOSTILE[6:]}
    data["score"], y = rng.random(400), (data["double"] == '"').astype(float)
    fix = tu.MCGrad("score", HOSTILE, depth=2, stopping=None, rounds=1, trees=20, min_hessian=0.1).fit(data, y)
    assert fix.model_.map.changes
    assert tu.export(fix, tmp_path / "model.h").largest_difference <= 4e-16
    fields = c.field_names(lower(fix.model_))
    assert len(set(fields.values())) == len(fields) == 13
    assert fields["double"] == "double_"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_columns_may_have_names_of_macros(compiler, tmp_path):
    need(compiler, ())
    names = ["linux", "unix", "M_PI", "FLT_MAX", "INFINITY", "stdin"]
    features = tuple(Feature(name, "numeric") for name in names)
    total = sum(Expression("numbers", "float", len(names)), Expression("scores", "float", 1))
    program = Program(Schema("regression", None, ("errno",), None, features), total, constant(True), (), (np.zeros(0),), {})
    fields = c.field_names(program)
    assert fields["linux"] == "linux_"
    (tmp_path / "model.h").write_text(c.write_c(program))
    values = " ".join(f"row.{field} = 1;" for field in fields.values())
    main = f"int main(void) {{ trueup_row row; {values} return trueup_predict(&row) != 7; }}\n"
    headers = ["math.h", "float.h", "stdio.h", "stdlib.h", "errno.h"]
    (tmp_path / "main.c").write_text("".join(f"#include <{name}>\n" for name in headers) + f'#include "model.h"\n{main}')
    subprocess.run([compiler, "-std=gnu11", "-o", tmp_path / "main", tmp_path / "main.c", "-lm"], check=True)
    subprocess.run([tmp_path / "main"], check=True)


def test_without_a_compiler_the_check_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ArgumentError, match="needs a C compiler"):
        tu.export(exported.MODELS["platt"](), tmp_path / "model.h")
    assert tu.export(exported.MODELS["platt"](), tmp_path / "model.h", verify=False) is None
