"""Names of the hub, on a cache that is laid out by hand."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singanet import pretrained
from singanet.checkpoint import open_state, write_folder
from singanet.errors import FileAccessError
from singanet.pretrained.source import folder_of
from tests.pretrained.test_loading import BERT, sentences
from tests.pretrained.test_loading import folder_of as folder_of_config

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The package, offline, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def lay_out(cache, name, files, commit=COMMIT, branch="main"):
    """A repository as the hub's cache has it: blobs, links to them, and what a branch points at."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "refs", repository / "blobs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / branch).write_text(commit)
    for number, (file, content) in enumerate(files.items()):
        blob = repository / "blobs" / f"{commit[:8]}{number}"
        blob.write_bytes(content)
        link = snapshot / file
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.fixture
def files(tmp_path):
    write_folder(tmp_path / "m", {"a": np.ones(3, "f4"), "b": np.ones(4, "f4")}, 16)
    return {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}


def test_a_name_in_the_cache(hub, files):
    snapshot = lay_out(hub, "Org/Tiny-1.0", {"config.json": b"{}", **files})
    assert folder_of("Org/Tiny-1.0") == snapshot
    with open_state(folder_of("Org/Tiny-1.0")) as reader:
        assert [len(array) for _, array in reader] == [3, 4]
    lay_out(hub, "tiny", files)
    assert folder_of("tiny").parents[1].name == "models--tiny"


def test_revisions(hub, files):
    lay_out(hub, "Org/Tiny", files)
    other = lay_out(hub, "Org/Tiny", files, "f" * 40, "v2")
    assert folder_of("Org/Tiny").name == COMMIT
    assert folder_of("Org/Tiny", "v2") == other
    assert folder_of("Org/Tiny", "f" * 40) == other
    with pytest.raises(FileAccessError, match="'Org/Tiny'.*from the hub LocalEntryNotFound"):
        folder_of("Org/Tiny", "v3")


def test_a_folder_comes_before_a_name(hub, files, tmp_path, monkeypatch):
    lay_out(hub, "Org/Tiny", files)
    (tmp_path / "Org/Tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert str(folder_of("Org/Tiny")) == "Org/Tiny"


def test_names_that_nothing_has_and_what_is_no_name(hub, monkeypatch):
    for name in ("Org/Other", "other", "Org/Tiny--x", "a" * 200):
        with pytest.raises(
            FileAccessError, match="name of a model.*received no such folder, and f"
        ):
            folder_of(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    # So the reader says what is wrong with a path, with or without the package.
    for name in ("/no/such", "./x", "../x", "a/b/c", "", ".", "Org/", "~/x", "ä"):
        assert folder_of(name) == Path(name)
    with pytest.raises(FileAccessError, match=r"no package hugg.*pip install 'singanet\[hub\]'"):
        folder_of("HuggingFaceTB/SmolLM2-135M")


def test_nothing_outside_the_repository_is_read(hub, files, tmp_path):
    snapshot = lay_out(hub, "Org/Tiny", files)
    (tmp_path / "secret.safetensors").write_bytes(b"")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(FileAccessError, match="received a link"):
        open_state(folder_of("Org/Tiny"))


@pytest.mark.full
def test_as_the_environment_says(tmp_path, files):
    """Offline and with another cache, in a process of its own."""
    pytest.importorskip("huggingface_hub")
    snapshot = lay_out(tmp_path / "hub", "Org/Tiny", files)
    code = "from singanet.pretrained.source import folder_of; print(folder_of('Org/Tiny'))"
    told = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    environment = {**os.environ, **told, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == str(snapshot)


def test_a_sentence_model_of_the_cache_is_loaded_and_saved(hub, tmp_path):
    folder, again = sentences(folder_of_config(BERT, tmp_path / "m")), tmp_path / "again"
    (folder / "tokenizer.json").write_text("{}")
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*.json")]
    files = {name: (folder / name).read_bytes() for name in [*names, "model.safetensors"]}
    lay_out(hub, "Org/Sentences", files)
    net = pretrained.load("Org/Sentences")
    assert net._execution_plan().outputs == ["sentence_embedding"]
    pretrained.save(net, again)
    assert {p.relative_to(again).as_posix() for p in again.rglob("*.*")} == files.keys()
    assert not any(p.is_symlink() for p in again.rglob("*"))
