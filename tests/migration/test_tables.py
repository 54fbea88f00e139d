"""The tables of arguments in the guides from Keras and PyTorch, against the installed ones."""

import re

import pytest

from tests.migration.rows import Guide, parameters

HEADINGS = {"keras.md": 9, "pytorch.md": 4}
PLACES = [(page, k) for page, count in HEADINGS.items() for k in range(count)]


def guide_of(page):
    if page == "keras.md":
        return Guide(page, pytest.importorskip("keras"))
    torch = pytest.importorskip("torch")

    def signature(kind):
        """PyTorch's recurrent modules hand their arguments on to their base."""
        if kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
            base = parameters(torch.nn.RNNBase)
            own = {"nonlinearity": "tanh"} if kind is torch.nn.RNN else {}
            return {name: default for name, default in base.items() if name != "mode"} | own
        return parameters(kind)

    def room(heading, found):
        if heading == "torch.nn.init":
            return {n: f for n, f in vars(found).items() if re.fullmatch(r"[a-z]\w*[a-z]_", n)}
        return {}

    return Guide(page, torch, signature, room)


@pytest.mark.parametrize(("page", "number"), PLACES)
def test_each_argument_of_theirs_has_its_place(page, number):
    guide = guide_of(page)
    assert len(guide.rows) == HEADINGS[page]
    heading = list(guide.rows)[number]
    wrong = guide.wrong_rows(heading)
    assert wrong == [], f"write the rows of docs/migration/{page}, {heading}, by hand"
