"""What a user gets before writing a line: a light import, types, data, documentation."""

import ast
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import singanet
from singanet.errors import BackendError

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = [
    *("cupy", "torch", "keras", "PIL", "mpi4py", "onnx", "tqdm", "h5py", "google.protobuf"),
    *("jinja2", "llvmlite", "matplotlib", "resvg_py", "tokenizers", "sklearn"),
]


def walk():
    """Every public module of the package, and whether it is a package itself."""
    found = [("singanet", True)]
    for module in pkgutil.walk_packages(singanet.__path__, "singanet."):
        parts = module.name.split(".")
        if not any(part.startswith("_") or part.endswith("_pb2") for part in parts):
            found.append((module.name, module.ispkg))
    return found


def python(code):
    """What a fresh interpreter prints for ``code``, read as JSON."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(singanet.__file__).parents[1])},
        capture_output=True, check=True, text=True
    )  # fmt: skip
    return json.loads(run.stdout)


def loaded(code, names):
    """Which of the modules ``names`` are there after ``code``."""
    told = f"print(json.dumps([n for n in {names} if n in sys.modules]))"
    return python(f"import json, sys\n{code}\n{told}")


def test_a_prediction_imports_neither_training_nor_tokenizers(tmp_path):
    path = str(tmp_path / "net.onnx")
    singanet.onnx.save(singanet.models.build("mlp", seed=0), path)
    code = (
        f"import singanet, numpy\nnet = singanet.onnx.load({path!r})\n"
        "net.predictor()(numpy.zeros((1, 1, 28, 28), numpy.float32))"
    )
    others = ["data.tokens", "training.evaluation", "metric.auc", "checkpoint.formats",
              "checkpoint.hdf5", "checkpoint.matching", "optimizer.muon", "parallel.initialize",
              "onnx.write"]  # fmt: skip
    assert loaded(code, [f"singanet.{name}" for name in others]) == []


def test_compiling_by_names_imports_no_others():
    code = (
        "import singanet\nnet = singanet.FeedForwardNet([singanet.layers.Dense('a', 2)])\n"
        "net.compile('adam', 'softmax_cross_entropy', ['accuracy'])"
    )
    others = ["optimizer.muon", "optimizer.factored", "loss.ctc", "loss.contrastive", "metric.auc"]
    assert loaded(code, [f"singanet.{name}" for name in others]) == []


def test_a_fit_imports_neither_files_nor_charts_nor_recomputation():
    code = (
        "import numpy as np, singanet\n"
        "net = singanet.FeedForwardNet([singanet.layers.Dense('a', 2)], seed=0)\n"
        "net.compile('adam', 'mse')\nx = np.ones((9, 2), np.float32)\n"
        "net.fit(x, x, batch_size=3, verbose=False)"
    )
    others = ["checkpoint.entry", "training.files", "base.charts", "layers.convolution",
              "engine.recompute.units", "engine.recompute.by_layers"]  # fmt: skip
    assert loaded(code, [f"singanet.{name}" for name in others]) == []


def test_a_training_draws_nothing(tmp_path):
    code = (
        "import json, sys, singanet\nfrom singanet.report import recorders\n"
        "d = singanet.data.digits()\nnet = singanet.models.build('mlp', d.sample_shape, 10)\n"
        "net.compile(singanet.optimizer.SGD(lr=0.1))\n"
        f"told = dict(verbose=False, callbacks=recorders({str(tmp_path / 'run')!r}))\n"
        "net.fit(d.x_train[:64], d.y_train[:64], **told)"
    )
    assert loaded(code, ["matplotlib", "jinja2", "resvg_py"]) == []


@pytest.mark.parametrize("name", ["singanet", "singanet.data"])
def test_import_brings_no_extra(name):
    assert loaded(f"import {name}", EXTRAS) == []


def test_public_names_are_there_after_a_plain_import():
    names = [
        *("keras.load_model", "checkpoint.diff", "report.write_report", "program.Program"),
        *("testing.check_gradients", "training.callbacks.EMA"),
        *("onnx.load", "parallel.AllReduce", "parallel.launch", "program.tuning"),
        *("gradients", "summary", "saving"),
        *("data.digits", "optimizer.schedules.Cosine", "models.build", "loss.SquaredError"),
    ]
    # A process each, as one name may bring what another needs; the import is made once for all.
    code = (
        "import json, os, singanet\nmissed = []\n"
        f"for name in {names}:\n"
        "    if not (child := os.fork()):\n"
        "        try: os._exit(eval(f'singanet.{name}') is None)\n"
        "        finally: os._exit(1)\n"
        "    if os.waitpid(child, 0)[1]: missed.append(name)\n"
        "print(json.dumps(missed))"
    )
    assert python(code) == []


def test_what_guides_name_is_reached_from_a_plain_import():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    named = {*re.findall(r"\bsinganet\.([a-z_]+)\b", text)}
    rooms = {name for name in named if (ROOT / "singanet" / name / "__init__.py").exists()}
    inner = {"base", "engine", "ops", "params", "runs", "commands"}
    assert len(rooms) > 15
    assert {name for name in rooms - inner if not hasattr(singanet, name)} == set()


def test_rooms_come_when_they_are_asked_for():
    rooms = [f"singanet.{room}" for room in ("keras", "report", "testing", "data", "models")]
    assert loaded("import singanet", rooms) == []
    shown = python("import json, singanet; print(json.dumps(dir(singanet)))")
    assert {"keras", "report", "FeedForwardNet"} <= {*shown}
    # What starts processes loads neither arrays nor nets.
    heavy = ["numpy", "singanet.net", "singanet.layers", "singanet.parallel.pipeline"]
    for name in ("", ".parallel.launch.rank", ".parallel.launch.start"):
        assert loaded(f"import singanet{name}", heavy) == []


def test_types_and_data_files_lie_in_the_package_and_versions_agree():
    for file in ("py.typed", "data/files/NOTICE.md", "report/page.html"):
        assert (Path(singanet.__file__).parent / file).is_file()
    # A regular expression, since Python 3.10 has no TOML reader.
    written = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert written is not None
    assert singanet.__version__ == written.group(1)
    assert f"\nversion: {singanet.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_modules_are_imported_and_documented():
    silent = []
    for name, _ in walk():
        try:
            text = importlib.import_module(name).__doc__
        except BackendError:  # the library that it stands on is not there
            source = Path(importlib.util.find_spec(name).origin).read_text("utf-8")
            text = ast.get_docstring(ast.parse(source))
        if len(text or "") <= 4:
            silent.append(name)
    assert silent == [], "they say nothing about themselves"


def public_methods():
    """Every public method of the package's public classes, with its class and name."""
    for module in {name: None for name, _ in walk()}:
        try:
            found = vars(importlib.import_module(module))
        except BackendError:  # the library that it stands on is not there
            continue
        for kind in found.values():
            if isinstance(kind, type) and kind.__module__ == module and kind.__name__[0] != "_":
                for name, member in vars(kind).items():
                    function = getattr(member, "fget", getattr(member, "__func__", member))
                    # Kernels stand in a table of functions, which have the text.
                    own = getattr(function, "__qualname__", "").startswith(kind.__qualname__)
                    if name[0] != "_" and own and isinstance(function, types.FunctionType):
                        yield kind, name


def of_protocols():
    """For each protocol of the package its methods, which tell what those of its classes do."""
    modules = [vars(module) for name, module in sys.modules.items() if "singanet" in name]
    kinds = {id(kind): kind for module in modules for kind in module.values()}.values()
    for kind in kinds:
        if isinstance(kind, type) and getattr(kind, "_is_protocol", False):
            members = {n for n, it in vars(kind).items() if isinstance(it, types.FunctionType)}
            told = {n for n, it in vars(kind).items() if n[0] != "_" and inspect.getdoc(it)}
            yield {name for name in members if name[0] != "_"}, told


def test_methods_have_a_text_their_own_or_an_inherited_one():
    methods = list(public_methods())
    assert len(methods) > 2000
    protocols = list(of_protocols())
    silent = [
        (kind, name)
        for kind, name in methods
        if not inspect.getdoc(getattr(kind, name))
        and not any(name in told and members <= {*dir(kind)} for members, told in protocols)
    ]
    # The names of the tests that layers inherit are sentences.
    assert [each for each in silent if not each[1].startswith("test_")] == []


def test_texts_that_are_inherited_are_not_pointed_at():
    """ "As `Loss`." and the like stands where nothing is inherited, and nowhere else."""
    pointing = []
    for kind, name in public_methods():
        above = [getattr(base, name) for base in kind.__mro__[1:] if name in vars(base)]
        own = getattr(getattr(kind, name), "__doc__", None) or ""
        if re.fullmatch(r"(As|See) `[\w.]+`\.", own) and any(map(inspect.getdoc, above)):
            pointing.append(f"{kind.__qualname__}.{name}")
    assert pointing == []


def test_a_class_name_means_one_class():
    places: dict[str, set[Path]] = {}
    for path in sorted((ROOT / "singanet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, set()).add(path)
    assert len(places) > 700
    # Users call both: an initializer and a schedule, a loss and a metric.
    several = {name for name, files in places.items() if len(files) > 1}
    assert several == {"Constant", "MeanAbsoluteError"}


@pytest.mark.parametrize("name", [name for name, is_package in walk() if is_package])
def test_package_names_its_public_names(name):
    package = importlib.import_module(name)
    assert isinstance(package.__all__, list), f"{name} has no __all__"
    assert len(set(package.__all__)) == len(package.__all__)
    for public in package.__all__:
        assert hasattr(package, public), f"{name}.__all__ has {public}, which is not there"


def test_every_page_that_the_code_names_is_where_it_says():
    pages, found = "https://github.com/singanet/singanet/blob/main/", 0
    for path in (ROOT / "singanet").rglob("*.py"):
        for name in re.findall(r"[\w:/.-]+\.md\b", path.read_text("utf-8")):
            found += 1
            start = ROOT if name.startswith(pages) else path.parent
            assert (start / name.removeprefix(pages)).is_file(), f"{path}: {name}"
    assert found > 5
