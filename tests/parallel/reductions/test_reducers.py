"""Each reducer keeps the contract of `ReducerCase`."""

from typing import ClassVar

from singanet.optimizer import SGD
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    PartialUpdate,
    PowerSGD,
    Sharded,
    SparseAllReduce,
)
from tests.parallel.reductions.reducer_case import AmongRanks, OfGradients, ReducerCase
from tests.parallel.reductions.reducer_settings import SETTINGS, WORDS


class TestAllReduce(OfGradients):
    kind = AllReduce
    fixed = ("error_feedback", True), ("dtype", "float16"), ("window", 9)
    other = {"dtype": "float16"}


class TestAllReduceOneByOne(OfGradients):
    kind, options = AllReduce, {"window": 1}
    bits_of, other = AllReduce, {"window": 2}


class TestAllReduceInHalves(OfGradients):
    kind, options = AllReduce, {"dtype": "float16"}
    exact, share, other = False, 0.5, {"dtype": None}


class TestSparseAllReduceOfAll(OfGradients):
    kind, options = SparseAllReduce, {"ratio": 1.0}
    share, other = None, {"error_feedback": False}
    unsent, not_recorded = "nothing unsent", "a gradient of another kind"


class TestSparseAllReduce(OfGradients):
    kind, options = SparseAllReduce, {"ratio": 0.1}
    exact, share, unsent = False, None, "nothing unsent"
    not_recorded = "a gradient of another kind"
    fixed = ("corr", True), ("spars", 0.1), ("dtype", "float16"), ("ratio", 1.5), ("warm_up", -1)
    other = {"ratio": 0.02}


class TestSparseAllReduceWithMomentum(OfGradients):
    kind, options = SparseAllReduce, {"ratio": 0.2, "momentum": 0.9, "warm_up": 3}
    exact, share, unsent, momentum = False, None, "nothing unsent", 0.0
    fixed, other = (("error_feedback", False),), {"momentum": 0.5}
    # A lone process uses its momentum, and no plain rule does.
    test_a_lone_process_has_the_bits_of_the_plain_rule_and_is_saved_without_ranks = None
    refuses = {name: "row-sparse" for name in SETTINGS if SETTINGS[name].x is WORDS}

    def rule_for(self, setting):
        return SGD(lr=0.1)


class TestPowerSGDOfFullRank(OfGradients):
    # Gradients of 24 samples have at most that rank.
    kind, options = PowerSGD, {"rank": 40, "gain": 0.0}
    share, unsent, other = None, "nothing unsent", {"warm_start": False}
    near = 1e-3, 1e-5
    # What a rank has not sent cancels with that of the others, if they all go on.
    inexact = "joins", "two losses, joins"


class TestPowerSGD(OfGradients):
    kind, options = PowerSGD, {"rank": 2, "gain": 0.5}
    exact, share, unsent = False, None, "nothing unsent"
    fixed, other = (("rank", 3), ("gain", 3.0)), {"rank": 3}


class TestShardedState(OfGradients):
    kind, options = Sharded, {"level": 1, "smallest": 100}
    bits_of, share, not_recorded = AllReduce, 1.5, "rows of a table that are others"
    fixed, other = (("level", 2),), {"smallest": 200}


class TestShardedGradients(OfGradients):
    kind, options = Sharded, {"level": 2, "smallest": 100}
    bits_of, other, not_recorded = AllReduce, {"level": 1}, "rows of a table that are others"


class TestShardedParameters(OfGradients):
    kind, options = Sharded, {"level": 3, "smallest": 100}
    bits_of, share, other = AllReduce, 1.5, {"level": 2}
    recorded, gathers, precisions = False, True, (None,)
    refuses = dict.fromkeys(("joins", "two losses, joins"), "same pass of a net")
    not_on_device = "expected a net on the CPU"
    # Its ranks cannot read values alone.
    test_after_an_error_among_the_sums_no_step_is_taken = None


class TestLocalSGD(AmongRanks):
    kind, options = LocalSGD, {"every": 3}
    exact, share, not_recorded = False, 1 / 3, "no samples for a step updates nothing"
    fixed = ("every", 2), ("window", 0), ("error_feedback", True)
    skips, other = False, {"every": 5}


class TestPartialUpdate(AmongRanks):
    kind, options = PartialUpdate, {"partitions": 4}
    exact, share, not_recorded = False, 1 / 4, "no samples for a step updates nothing"
    fixed, other = (("partitions", 2),), {"partitions": 5}
    skips, averages = False, False


class TestParameterServer(ReducerCase):
    kind, servers = ParameterServer, 1
    share, fixed = None, (("consistency", "asp"),)
    not_recorded = "waits for other processes|weighed before"
    clips, skips = ("value", "global"), False
    refuses = {f"clip {kind}": "by value" for kind in ("layer", "running")} | {
        "rule muon": "which the rule looks at"
    }

    def takes(self, precision, clip_by, accumulates):
        # Each worker skips steps of its own.
        taken = super().takes(precision, clip_by, accumulates)
        return taken and not (precision and clip_by == "global")


class TestHybrid(ReducerCase):
    kind, servers = Hybrid, 2
    share, fixed, not_recorded = None, (("consistency", "asp"),), "weighed before"
    averages, precisions = False, (None,)
    refuses: ClassVar = {
        "rows, clip global": "clip by value", "by turns, clip global": "clip by value",
        "rule muon": "which the rule looks at", "clip running": "by value",
    }  # fmt: skip
