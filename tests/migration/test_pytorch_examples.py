"""Two of PyTorch's examples beside their ports: the same losses, and the lines that differ."""

import ast
import re
import sys
from difflib import SequenceMatcher
from types import ModuleType

import numpy as np
import pytest

from tests.migration.rows import PAGES

PAGE = {
    name: (PAGES / f"pytorch-{name}.md").read_text("utf-8") for name in ("language-model", "vae")
}


def blocks(name, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE[name], re.M | re.S)


class Plain(ast.NodeTransformer):
    """Code without imports and types."""

    def visit_Import(self, node):
        return None

    visit_ImportFrom = visit_Import  # noqa: N815 - of the base

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_AnnAssign(self, node):
        return ast.Assign([node.target], node.value, lineno=0)


def lines(code):
    return ast.unparse(Plain().visit(ast.parse(code))).splitlines()


def changed(theirs, ours):
    """How many lines of ``theirs`` are others, gone or new in ``ours``, and how many it has."""
    theirs, ours = ([line for line in lines(code) if line.strip()] for code in (theirs, ours))
    found = SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in found if kind != "equal"), len(theirs)


CODE = {"language-model": slice(1, None), "vae": slice(None)}
"""The blocks that take the place of theirs: what makes the text does not."""


@pytest.mark.parametrize("name", CODE)
def test_the_page_tells_how_many_lines_change(name):
    theirs, ours = blocks(name, "text")[0], "\n".join(blocks(name, "python")[CODE[name]])
    count, of = changed(theirs, ours)
    assert f"Of {of} lines beside imports {count} change" in PAGE[name]


def run(code, names):
    exec(compile(code, "page", "exec"), names)  # noqa: S102 - the guide's code is the project's own
    return names


@pytest.fixture
def theirs(monkeypatch, tmp_path):
    """The namespace of their code: a module, which `torch.save` finds classes in."""
    pytest.importorskip("torch", reason="compares with PyTorch: pip install '.[peers]'")
    monkeypatch.chdir(tmp_path)
    module = ModuleType("their_example")
    monkeypatch.setitem(sys.modules, "their_example", module)
    return vars(module)


def numbers(text):
    return [float(number) for number in re.findall(r"loss: (\d+\.\d+)", text)]


def carried(net, weights, names):
    """``net`` has their ``weights``, by ``names`` from ours to theirs."""
    for param in net.params():
        if not param.is_state:
            value = weights[names(param.name)].detach().numpy()
            param.value[...] = value if "encoder" in param.name else value.T


def of_rnn(name):
    layer, _, suffix = name.partition("/")
    if layer != "rnn":
        return f"{layer}.{suffix}"
    stack, _, kind = suffix.split("/")
    return f"rnn.{kind[:-1]}{'ih' if kind[-1] == 'x' else 'hh'}_{stack}"


def test_the_language_model_learns_as_theirs(theirs):
    kinds = (blocks("language-model", kind) for kind in ("python", "text"))
    # Without dropout, which each draws by a generator of its own.
    (make, *ours), (there,) = ([b.replace("= 0.2, ", "= 0.0, ") for b in each] for each in kinds)
    made, cut, training = there.partition("def repackage_hidden")
    here = run(make, {"__name__": "page"})
    run(made, theirs)
    run(ours[0], here)
    carried(here["net"], theirs["model"].state_dict(), of_rnn)
    run(cut + training, theirs)
    run(ours[1], here)
    for name in ("best_val_loss", "test_loss", "lr"):
        assert here[name] == pytest.approx(theirs[name], rel=1e-3), name


def test_the_autoencoder_learns_as_theirs(theirs, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)

    def noise(*size):
        return torch.tensor(rng.standard_normal(size, np.float32))

    monkeypatch.setattr(torch, "randn", noise)
    monkeypatch.setattr(torch, "randn_like", lambda std: noise(*std.shape))
    made, cut, training = blocks("vae", "text")[0].partition("def train(epoch)")
    ours = blocks("vae", "python")
    run(made, theirs)
    here = run(ours[0], {"__name__": "page"})
    there = theirs["model"].state_dict()
    carried(here["executor"].net, there, lambda name: name.replace("/", "."))
    run(cut + training, theirs)
    told = numbers(capsys.readouterr().out)
    here["rng"] = rng = np.random.default_rng(0)
    run(ours[1], here)
    assert numbers(capsys.readouterr().out) == pytest.approx(told, rel=1e-3)
    assert len(told) == 6
    assert here["sample"].shape == (64, 64)
    assert 0 < here["sample"].min() < here["sample"].max() < 1
