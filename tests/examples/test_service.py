"""The service of ``examples/``, asked as its clients would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import singanet

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A folder with the predictor, and the example among the modules."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "service.py", "--small"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert float(re.fullmatch(r"accuracy (\S+)\n", done.stdout)[1]) > 0.8
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield
    sys.modules.pop("service", None)


@pytest.mark.full
def test_it_answers_what_the_predictor_predicts_and_refuses_what_is_no_image(made):
    pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient", exc_type=ImportError).TestClient
    import service

    x = singanet.data.digits().x_test[:5]
    wanted = singanet.load_predictor("digits.singanet")(x)
    with client(service.app) as asked:
        answer = asked.post("/predict", content=x.tobytes())
        assert answer.content == wanted.tobytes()
        for body in (b"", x.tobytes()[:-1]):
            assert asked.post("/predict", content=body).status_code == 422
    assert np.argmax(wanted, 1).shape == (5,)
