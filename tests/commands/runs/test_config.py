"""Configuration files."""

import time

import pytest

from singanet.commands.runs.folder import read_config
from singanet.errors import SingaNetError


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 20_000) + " = 1",
        ".".join(["a"] * 200_000) + " = 1",
        "\n".join(f"{'k' * 2000}{k} = 1" for k in range(900)),
        "epochs = " + "[" * 30_000,
        "x = " + "{a = " * 9_000,
        "[" + ".".join(["a"] * 20_000) + "]",
    ],
    ids=["dotted", "dotted further", "long", "lists", "tables", "header"],
)
def test_small_files_that_ask_for_much(tmp_path, text):
    (tmp_path / "run.toml").write_text(text)
    start = time.process_time()
    with pytest.raises(SingaNetError) as caught:
        read_config(tmp_path / "run.toml")
    assert time.process_time() - start < 2
    assert len(str(caught.value)) < 600
