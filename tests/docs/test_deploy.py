"""The code of docs/deploy.md: the service answers requests, and the formats of other packages keep predictions."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from packages import need

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
ROWS = [
    {"prediction": 0.2, "region": "harbour", "age": 44.0}, {"prediction": 0.05, "region": None, "age": None},
    {"prediction": 0.9, "region": "Mars", "age": 19}, {"prediction": 0.4},
]  # fmt: skip
QUESTION = "the request must be JSON"


def block(containing):
    """Return the only block of code of the page that contains a text."""
    blocks = re.findall(r"^```(?:python|dockerfile)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [one for one in blocks if containing in one]
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    loans = tu.simulate.lending(4_000, seed=0)
    fix = tu.DepthTwo("prediction", ["region", "age"]).fit(loans, "outcome")
    tu.save(fix, tmp_path_factory.mktemp("model") / "lending.trueup")
    return fix.model_


@pytest.fixture(scope="module")
def service(model, tmp_path_factory):
    """The URL of the service of the page, in a process of its own."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "service.py").write_text(block("ThreadingHTTPServer"))
    tu.save(model, folder / "lending.trueup")
    command = [sys.executable, "service.py", "lending.trueup", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "HOST"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[-1]}/"
        finally:
            process.kill()


def _post(url, content):
    """Return the status and the answer to a request."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, body), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_service_answers_with_the_scores_of_the_model(service, model):
    expected = [model.predict_one(row) for row in ROWS]
    assert _post(service, {"rows": ROWS}) == (200, {"scores": expected})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: _post(service, {"rows": ROWS}), range(40)))
    assert all(answer == (200, {"scores": expected}) for answer in answers)


@pytest.mark.parametrize(("content", "message"), [
    ({"rows": [{"prediction": 1.2}]}, "prediction 'prediction' must be a probability in [0, 1]; got 1.2"),
    ({"rows": [{"prediction": 0.2, "regin": "east"}]}, "the row has a key 'regin', which is not a column of the model"),
    ({"rows": [{"prediction": "x"}]}, "prediction 'prediction' must be a finite number; got 'x'"),
    ({"rows": [7]}, "predict_one takes a mapping"),
    ({"row": {}}, QUESTION), (b"not JSON", QUESTION), (b"[1, 2]", QUESTION), ({"rows": 7}, QUESTION), (b"\xff", QUESTION),
])  # fmt: skip
def test_the_service_reports_invalid_requests_with_the_message_of_the_library(service, content, message):
    status, answer = _post(service, content)
    assert status == 400
    assert answer["error"].startswith(message)
    assert _post(service, {"rows": ROWS})[0] == 200


@pytest.mark.parametrize("length", ["1048577", "-1", "x", None])
def test_the_service_refuses_large_requests_before_it_reads_them(service, length):
    connection = http.client.HTTPConnection(service.split("/")[2], timeout=60)
    connection.putrequest("POST", "/")
    if length is not None:
        connection.putheader("Content-Length", length)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert "at most 1,048,576 bytes" in json.load(answer)["error"]
    connection.close()


def test_the_container_starts_the_service_of_the_page():
    lines = block("FROM python")
    assert 'CMD ["python", "service.py", "lending.trueup", "8080"]' in lines
    assert "HOST=0.0.0.0" in lines
    assert "USER app" in lines


def test_round_trips_of_the_page_keep_predictions(tmp_path, monkeypatch):
    need("skops")
    from sklearn.linear_model import LogisticRegression

    monkeypatch.chdir(tmp_path)
    loans = tu.simulate.lending(1_000, seed=0)
    X = np.column_stack([loans["prediction"], loans["age"]])
    calibrated = tu.CalibratedClassifier(LogisticRegression(), tu.Platt()).fit(X, loans["outcome"])
    by_joblib, by_skops = block("skops.io").split("\ncontent = ")
    names = {"calibrated": calibrated}
    for code in (by_joblib, "content = " + by_skops):
        exec(code, names)
        assert names["again"] is not calibrated
        assert names["again"].predict_proba(X).tolist() == calibrated.predict_proba(X).tolist()


def test_a_served_model_counts_what_it_scores(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tu.save(tu.load(model) if isinstance(model, (str, Path)) else model, "lending.trueup")
    exec(block("stats.unseen_levels"), {"tu": tu})
