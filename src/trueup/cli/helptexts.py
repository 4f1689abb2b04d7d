"""What the help of the command line says, beside its options."""

from __future__ import annotations

ABOUT = """\
True up any model: say where its scores are wrong, with p-values that hold, and put them right.

  trueup demo
  trueup audit scores.parquet --outcome y --prediction p --by country,device
  trueup fit scores.parquet --outcome y --prediction p --features country,device -o model.trueup
  trueup predict model.trueup new.parquet -o scored.parquet
  trueup explain model.trueup
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20
"""

AUDIT = """\
Test whether scores are calibrated: on all rows, on every value of the columns named
by --by, and on every combination of them. Says which segments are off beyond chance.
"""

AUDIT_EXAMPLES = """\
examples:
  trueup audit scores.parquet --outcome clicked --prediction p --by country,device,age
  trueup audit 'day-*.csv' --outcome y --prediction p --bins age=18:30:50 --bins opened=month
  trueup audit scores.csv --outcome species --prediction p_cat,p_dog,p_fox
  trueup audit scores.csv --outcome y --prediction p -o report.html -o summary.md --profile credit
  trueup audit scores.csv --outcome y --prediction p_trueup --against p -o compared.html
  trueup audit scores.csv --outcome status --positive late --prediction p --fail-if miscalibrated --tolerance 0.02
  trueup audit --sql "SELECT y, p, country FROM 'scores.parquet' WHERE day >= '2024-01-01'" \\
      --outcome y --prediction p --json - | jq .verdict

names: a list is separated by commas, and its option may be repeated. A name that is there as
  it is written is not split: --by a --by "b,c" names the column "b,c" where there is one.

exit codes: 0 fine; 1 --fail-if found what it names; 2 bad input or usage; 3 a fault in trueup;
  130 interrupted.
"""

FIT = """\
Learn what is wrong with scores on the segments that the features make, and save a small model
that puts it right. Rows judge it that it has not seen: where nothing helps, it changes nothing
(curves of the score alone, isotonic to histogram, are judged only with --judge).
Fit it on rows that the model of the scores was not trained on.
"""

METHOD_HELP = """mcgrad (default): boosted trees over features and score; auto: the simplest of several that is good
enough, which may be none; lsboost: small trees on level sets; depthtwo: one ensemble of depth-2 trees, checked for
saturation; hkrr, multiaccuracy: a list of patches to read; lore: the outcomes of rows nearby; isotonic, platt,
temperature, beta, histogram: a curve of the score alone"""

FIT_EXAMPLES = """\
examples:
  trueup fit scores.parquet --outcome clicked --prediction p --features country,device,age -o model.trueup
  trueup fit 'day-*.csv' --outcome y --prediction p --categorical zip -o model.trueup
  trueup fit scores.csv --outcome species --prediction p_cat,p_dog,p_fox -o model.trueup
  trueup fit sales.csv --outcome amount --prediction forecast --task regression -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method auto -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method platt --by region -o model.trueup
  trueup fit may.csv --outcome y --prediction p --validation june.csv -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --held-out held.csv -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method lore --features x1,x2,x3 -o model.trueup
"""

PREDICT = """\
Correct the scores of files by a model: write everything that is in them, and the corrected
score beside it. The file that is written is there whole or not at all.
"""

PREDICT_EXAMPLES = """\
examples:
  trueup predict model.trueup new.parquet -o scored.parquet
  trueup predict model.trueup 'day-*.csv' -o scored.csv --as p_fixed
  trueup predict model.trueup new.jsonl -o scored.csv.gz --only
  trueup predict model.trueup --sql "FROM 'new.parquet' WHERE day >= '2024-01-01'" -o scored.parquet
"""

EXPLAIN = """\
Say what a model is: where it comes from, which segments it corrects and by how much, and how it
was judged. With --row, say which conditions move one prediction; the parts add up to the change.
"""

EXPLAIN_EXAMPLES = """\
examples:
  trueup explain model.trueup
  trueup explain model.trueup --row '{"p": 0.2, "country": "BR", "age": 31}'
  trueup explain model.trueup --json - | jq .explanation.corrections
"""

DECIDE = """\
Say what to do with rows whose outcome is not known yet: from which score on to act, what that will
cost, and what it saves. Labelled rows say how far to trust the scores. They must have taught neither
the model nor a fix of it: for scores that trueup fit corrects, take what fit --held-out writes.
"""

DECIDE_EXAMPLES = """\
examples:
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20 --labelled old.parquet --outcome y
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --capacity 300 --by region,device
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --threshold 0.2 -o cost.svg
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --capacity 500 -o decided.csv
  trueup decide new.csv --prediction p --action pass:500,0 --action review:40,40 --action block:0,120 \\
      --capacity review=300 --json - | jq .cost.estimate

costs: in any unit, per row; below 0 they are gains. --cost-fn and --cost-fp are those of a positive
  row that was passed over and of a negative one that was acted on. --action names something that can be
  done, with its cost on a positive and on a negative row.
"""

DEMO = """\
Audit simulated loan scores in which errors were planted, fit a correction to half of the loans,
audit again on the other half, and write both audits to one page and the model beside it.
"""

DEMO_EXAMPLES = """\
examples:
  trueup demo
  trueup demo --rows 100000 --seed 1 -o loans.html
"""

COMPLETION = """\
Print a script that lets a shell complete verbs, options and their values as you type.
"""

COMPLETION_EXAMPLES = """\
examples:
  source <(trueup completion bash)                                  # this session; in ~/.bashrc every one
  trueup completion zsh > ~/.zfunc/_trueup                          # a folder of $fpath
  trueup completion fish > ~/.config/fish/completions/trueup.fish
"""
