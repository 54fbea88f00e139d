"""``singanet sample``."""

import pytest

from singanet.__main__ import main
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions


@pytest.fixture(scope="module")
def language_run(tmp_path_factory):
    """A transformer that has read a little."""
    folder = tmp_path_factory.mktemp("language")
    play = folder / "play.txt"
    play.write_text("to be or not to be that is the question\n" * 60)
    run(RunOptions("transformer", str(play), epochs=2, batch_size=4, out=folder / "run"))
    return folder / "run"


def written(capsys, *argv):
    capsys.readouterr()
    assert main(["sample", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_so_many_characters_after_the_prompt_of_the_texts_own(language_run, capsys):
    text = written(capsys, language_run, "--prompt", "to be", "--length", "30")
    assert text.startswith("to be")
    assert len(text) == len("to be") + 30 + 1
    assert {*text} <= {*"to be or not to be that is the question\n"}


def test_seed_and_temperature_decide(language_run, capsys):
    def sample(*extra):
        return written(capsys, language_run, "--length", "40", "--temperature", "1", *extra)

    assert sample("--seed", "4") == sample("--seed", "4") != sample("--seed", "5")
    assert sample("--temperature", "0", "--seed", "4") == sample("--temperature", "0")


def test_the_likeliest_alone(language_run, capsys):
    def sample(*extra):
        return written(capsys, language_run, "--length", "40", *extra)

    assert sample("--top-k", "1") == sample("--temperature", "0") == sample("--top-p", "0.001")


def test_a_text_without_new_lines_begins_with_a_character_of_its_own(tmp_path, capsys):
    play = tmp_path / "play.txt"
    play.write_text("to be or not to be that is the question " * 60)
    out = tmp_path / "run"
    run(RunOptions("char_rnn", str(play), epochs=1, batch_size=8, out=out))
    text = written(capsys, out, "--length", "20")
    assert len(text) == 21
    assert written(capsys, out, "--length", "20", "--prompt", "t") == f"t{text}"


def test_mistakes_are_one_line(language_run, refused):
    for options, said in (
        ("--temperature -1", "temperature: expected"), ("--top-p 2", "top_p: expected"),
        ("--prompt X", "received 'X'"), ("--length 0", "--length"),
        ("--data plays", "remove --data")
    ):  # fmt: skip
        assert said in refused("sample", language_run, *options.split())
