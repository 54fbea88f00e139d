import pytest

from singanet.commands.runs.optimizers import check_reducer, reduced
from singanet.errors import ArgumentError, UnknownNameError
from singanet.optimizer import SGD
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, PowerSGD, Sharded, SparseAllReduce


@pytest.mark.parametrize(
    ("name", "options", "kind", "has"),
    [
        ("allreduce", {}, AllReduce, {"dtype": None}),
        ("half", {}, AllReduce, {"dtype": "float16"}),
        ("sparse", {"ratio": 0.01}, SparseAllReduce, {"ratio": 0.01}),
        ("sharded", {}, Sharded, {"level": 2}),
        ("powersgd", {}, PowerSGD, {"rank": 4}),
        ("partial", {"every": 3}, PartialUpdate, {"partitions": 3}),
        ("local", {"every": 5}, LocalSGD, {"every": 5}),
    ],
)
def test_each_way_has_its_stage(name, options, kind, has):
    rule = SGD(lr=0.1)
    stage = reduced(rule, name, **options)
    assert type(stage) is kind
    assert stage.optimizer is rule
    assert {key: getattr(stage, key) for key in has} == has


@pytest.mark.parametrize(
    ("name", "ratio", "every"),
    [("allreduce", 0.1, None), ("local", None, 0), ("sparse", 0.0, None), ("sparse", 1.5, None)],
)
def test_an_option_that_does_not_fit_is_refused(name, ratio, every):
    with pytest.raises(ArgumentError, match=f"received.*--parallel {name}"):
        check_reducer(name, ratio, every)


def test_an_unknown_way_is_refused():
    with pytest.raises(UnknownNameError, match="sparse"):
        check_reducer("spars", None, None)
