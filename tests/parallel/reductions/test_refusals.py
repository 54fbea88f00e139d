"""What reducers refuse, by the words of each error."""

import pytest

from singanet.errors import ArgumentError, SingaNetError
from singanet.optimizer import SGD, Accumulator, Adam
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, PowerSGD, Sharded, SparseAllReduce

RULE, MOVING = SGD(lr=0.1), SGD(lr=0.1, momentum=0.9)
MADE = [
    (SparseAllReduce, RULE, {"ratio": 0.1, "threshold": 0.1}, "remove one"),
    (SparseAllReduce, RULE, {"ratio": 0.0}, "above 0"),
    (SparseAllReduce, RULE, {"ratio": 1.5}, "at most 1"),
    (SparseAllReduce, RULE, {"threshold": float("inf")}, "from 0 on"),
    (SparseAllReduce, RULE, {"threshold": True}, "from 0 on"),
    (SparseAllReduce, RULE, {"threshold": 0.1, "warm_up": 3}, "the warm-up reaches"),
    (SparseAllReduce, MOVING, {"momentum": 0.9}, "a rule without momentum"),
    (SparseAllReduce, Adam(lr=0.1), {"momentum": 0.9}, "a rule without momentum"),
    (SparseAllReduce, RULE, {"momentum": 0.9, "error_feedback": False}, "error_feedback=True"),
    (LocalSGD, Accumulator(RULE, 2), {}, "reduced once"),
    (LocalSGD, AllReduce(RULE), {}, "remove one"),
    (LocalSGD, RULE, {"every": 0}, "every"),
    (PartialUpdate, RULE, {"partitions": 0}, "partitions"),
    (PowerSGD, RULE, {"rank": 0}, "rank"),
    (Sharded, RULE, {"level": 4}, r"level=\): expected 1"),
]
ASSIGNED = [
    (SparseAllReduce(RULE, threshold=0.1), "warm_up", 3),
    (SparseAllReduce(RULE, momentum=0.5), "error_feedback", False),
    (SparseAllReduce(MOVING), "momentum", 0.5),
]


@pytest.mark.parametrize(("kind", "rule", "options", "told"), MADE)
def test_what_does_not_go_together_is_refused(kind, rule, options, told):
    with pytest.raises(ArgumentError, match=told):
        kind(rule, **options)


@pytest.mark.parametrize(("made", "name", "value"), ASSIGNED)
def test_what_would_not_be_heard_is_refused(made, name, value):
    before = repr(made)
    with pytest.raises(SingaNetError):
        setattr(made, name, value)
    assert repr(made) == before
