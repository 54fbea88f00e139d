"""Plans with each part and action, and plans drawn by chance: recorded as by the layers.

In memory, from a folder, in float16, within a budget, on a device, and as one of several ranks.
"""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.offload import offloaded as offloading
from singanet.offload.offloaded import OffloadExecutor
from singanet.optimizer import ClipByGlobalNorm, MixedPrecision
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.program.replay.shared_arena import LONGEST
from singanet.testing import strict_device
from tests.pairs.training import taking_measures

from . import many_plans
from .conftest import KERNELS
from .drawn_nets import (
    EVERYWHERE,
    JOINS,
    LOSSES,
    METRICS,
    NETS,
    OPTIMIZERS,
    SHAPES,
    WEIGHTED,
    Action,
    Node,
    Plan,
)
from .plans import ACTIONS, HOW, LEVELS, OF_STEPS, VARIANTS, Run, plans
from .ranked_plans import Setting, drawn_setting, on_ranks

# -- each part and each action --------------------------------------------------------------

NODES = tuple(map(Node, ("tanh", "dense", "dropout", "gain", "probe")))
PLAIN = Plan("vectors", (*NODES, Node("relu", 2), Node("add", 0, 1)))
DEEP = ("dense", "tanh", "dense", "follows", "tanh", "dense", "counts", "tanh", "dense", "tanh")
DEEP = (*map(Node, DEEP), Node("dense"), Node("tanh"))
OWN = ("probe", "follows", "counts", "draws")
OTHERS = dict.fromkeys(SHAPES, (*OWN, *JOINS))
OTHERS |= {"vectors": (*EVERYWHERE, *JOINS), "texts": OF_STEPS}
NORMALISED = {
    values: (*map(Node, kinds), Node("add", 0, 2))
    for values, kinds in {
        "vectors": ("dense", "layer norm", "tanh", "batch norm", "relu"),
        "images": ("conv", "batch norm", "relu", "conv", "batch norm", "relu"),
    }.items()
}
USUAL = tuple(Action(kind) for kind in ("loop", "predict", "fit"))
PLANS = {
    **{
        f"{values}, {kind}": replace(
            PLAIN, values=values, nodes=(Node("tanh"), Node(kind), Node("dense"), Node(kind, 0, 1))
        )
        for values in SHAPES
        for kind in (*WEIGHTED[values], *OTHERS[values])
    },
    **{name: replace(PLAIN, net=name) for name in NETS},
    **{name: replace(PLAIN, loss=name, metric="none") for name in LOSSES},
    **{name: replace(PLAIN, metric=name) for name in METRICS},
    **{
        f"{name}, {values}": replace(PLAIN, optimizer=name, values=values)
        for name in OPTIMIZERS
        for values in ("vectors", "words")
    },
    **{
        f"{kind} {where}": replace(PLAIN, actions=(Action(kind, where, 1 + where % 3),))
        for kind in ACTIONS
        for where in range(VARIANTS[kind])
    },
    **{
        f"{kind} {where}, normalised {values}": replace(
            PLAIN, values=values, nodes=NORMALISED[values], actions=(Action(kind, where, 3),)
        )
        for values in ("vectors", "images")
        for kind, wheres in {
            "pause": (4,),
            "between": (0, 4, 7, 10),
            "laid otherwise": (0,),
        }.items()
        for where in wheres
    },
    # What runs forward again moves running state and counts once a step.
    **{
        f"{level}, {name}": replace(PLAIN, nodes=DEEP, recompute=level, optimizer=name)
        for level in LEVELS
        for name in ("momentum", "clip global", "mean of global")
    },
    "words that are none": replace(PLAIN, values="words", actions=(Action("refused step", 2),)),
    "told what was registered": replace(
        PLAIN, optimizer="sgd", actions=(Action("register"), Action("told", 3))
    ),
    **{
        f"{kind}, {node}": replace(PLAIN, nodes=(Node("dense"), Node(node)), actions=actions)
        for node in ("follows", "counts", "draws")
        for kind, actions in {
            "told": [Action("told", k) for k in range(4)],
            "between": [Action("between", k, 3) for k in range(6)],
            "asked": [Action("asked", k) for k in range(3)],
        }.items()
    },
    "asked without a gradient": replace(
        PLAIN, actions=(Action("layer trainable", 2), *(Action("asked", k) for k in range(6)))
    ),
}


@pytest.mark.few(110, full=80)
@pytest.mark.parametrize(("kernels", "level"), [("default", "none"), (KERNELS[-1], "cheap")])
@pytest.mark.parametrize("name", PLANS)
def test_each_part_and_action_is_as_by_the_layers(name, kernels, level):
    plan = PLANS[name]
    actions = plan.actions or (USUAL if plan.nodes == PLAIN.nodes else USUAL[:2])
    level = level if plan.recompute == "none" else plan.recompute
    plan = replace(plan, kernels=kernels, recompute=level, actions=actions)
    run = Run(plan)
    with np.errstate(all="ignore"):
        run.run()
        run.steps(4)
        # A net that changes often is recorded again only after `LONGEST` steps.
        for _ in range(LONGEST):
            if run.recorded.programs.reports() or name.startswith("patch layer"):
                return
            run.steps(1)
    raise AssertionError(f"not recorded: {run.recorded.programs.refusals}")


# -- drawn by chance ------------------------------------------------------------------------


class There(Run):
    def __init__(self, plan):
        # What computes with NumPy does so on the host alone.
        plan = replace(plan, optimizer="sgd") if plan.optimizer == "keeps" else plan
        plan = replace(plan, nodes=tuple(node for node in plan.nodes if node.kind != "draws"))
        super().__init__(replace(plan, actions=()))
        for net in self.nets:
            net.to_device(strict_device())

    # What is gathered may lie as rows in one, and as a whole table in the other.
    unlike = "/gathered"


class Way(Run):
    def __init__(self, plan, way, half, clipped, scale, folder):
        super().__init__(replace(plan, actions=()))
        optimizers = list(self.optimizers)
        if clipped:
            optimizers = [ClipByGlobalNorm(each, 0.2) for each in optimizers]
        if half:
            # The scale is too large at first, so that some steps are refused.
            precisions = [MixedPrecision(scale=scale) for _ in optimizers]
            pairs = zip(optimizers, precisions, strict=True)
            optimizers = [ScaledUpdates(each, precision) for each, precision in pairs]
            for net in self.nets:
                net.as_type("float16")
        self.optimizers = tuple(optimizers)
        if way == "folder":
            self.recorded.offload(folder / "net", "1MB")


@st.composite
def ways(draw):
    plan = draw(plans())
    clipped = draw(st.booleans()) and plan.optimizer in ("sgd", "momentum", "adam", "max norm")
    scale = 2.0 ** draw(st.sampled_from((4, 15, 40)))
    way, half = draw(st.sampled_from(("recorded", "folder"))), draw(st.booleans())
    if plan.optimizer == "keeps" or (plan.optimizer == "schedule free" and way == "folder"):
        # One updates when the step is over: what is in a folder may not be written then. The other
        # refuses a folder.
        plan = replace(plan, optimizer="sgd")
    if way == "folder" and half:
        # It walks twice, which a layer that moves what is no declared state or draw counts.
        moving = {"counts", "draws"}
        plan = replace(plan, nodes=tuple(n for n in plan.nodes if n.kind not in moving))
    return plan, way, half, clipped, scale


EXACT = {"recompute": ("recompute",), "offload": ("recompute", "offload")}
"""What a budget may be kept by, with the same bits."""
APART = {"batch norm", "follows", "counts", "draws", "dropout"}
"""Layers that do something else to a batch in parts."""


@st.composite
def budgets(draw):
    """A plan, what its budget may be kept by, and which of those ways it is."""
    plan = replace(draw(plans()), actions=())
    allowed = draw(st.sampled_from((*EXACT, "micro-batches")))
    if allowed == "offload" and plan.optimizer in ("keeps", "schedule free"):
        plan = replace(plan, optimizer="sgd")
    if allowed == "micro-batches":
        # What is gathered in another order differs in the last bits: no step may depend on these.
        nodes = tuple(node for node in plan.nodes if node.kind not in APART)
        plan = replace(plan, nodes=nodes, optimizer="sgd", metric="none")
    return plan, allowed, draw(st.integers(0, 4))


class Budget(Run):
    def __init__(self, plan, allowed, way, folder):
        super().__init__(plan)
        self.allowed, self.way, self.folder = allowed, way, folder

    def run(self):
        """Fit both twice, the first of them within a budget."""
        for k in range(2):
            x, y = self.data.batch(7)
            self.losses = []
            self.do(partial(self.fitted, x=x, y=y, own=self.folder / str(k)))
            if not self.losses:
                # Both refused it alike.
                return
            np.testing.assert_allclose(*self.losses, rtol=1e-4, atol=1e-6)
            if isinstance(self.recorded.executor, OffloadExecutor):
                self.recorded.onload()

    def fitted(self, net, optimizer, x, y, own):
        """The history of a fit, which has to be the same where batches are not cut."""
        said = {}
        if net is self.recorded:
            said = {"memory_budget": "1GB", "allow": EXACT.get(self.allowed, (self.allowed,))}
            said |= {"offload_folder": own} if self.allowed == "offload" else {}
        net.compile(optimizer)
        with taking_measures(self.way):
            history = dict(net.fit(x, y, 4, 2, verbose=False, **said))
        self.losses.append(history["loss"])
        return None if self.allowed == "micro-batches" else history

    def expect_equal(self):
        """As `Run`, nearly so where batches are cut."""
        if self.allowed != "micro-batches":
            super().expect_equal()
            return
        for a, b in zip(*(net.param_values() for net in self.nets), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def in_folder(kind):
    def run(drawn):
        # All but the smallest parameters go to the folder.
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(offloading, "SMALL", 8):
            kind(*drawn, Path(folder)).run()

    return run


KINDS = {
    # What is drawn, how it is run, and how many examples there are for one of the profile's.
    "in memory": (plans(), lambda plan: Run(plan).run(), 1.8),
    "on a device": (plans(), lambda plan: There(plan).run(), 0.8),
    "from a folder, or in float16": (ways(), in_folder(Way), 1.4),
    "on ranks": (st.randoms(use_true_random=False).map(drawn_setting), on_ranks, 0.5),
    "within a budget": (budgets(), in_folder(Budget), 0),
}


def runs(drawn, run, count):
    @settings(max_examples=count, **HOW)
    @given(drawn)
    def each(drawn):
        with np.errstate(all="ignore"):
            run(drawn)

    each()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][2]])
def test_nets_drawn_by_chance_train_as_by_the_layers(kind):
    drawn, run, share = KINDS[kind]
    runs(drawn, run, int(share * settings().max_examples))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_nets_drawn_by_chance_train_as_by_the_layers(kind):
    runs(*KINDS[kind][:2], 4000)


@pytest.mark.parametrize("more", [(), ("--ranks",)])
def test_the_command_carries_out_plans(more, capsys):
    assert not many_plans.main(["--count", "1", "--seed", "3", "--actions", "2", *more])
    assert "1 plans, 0 of them no net, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize("reducer", ["partial", "local"])
def test_a_norm_beside_local_updates_is_summed_in_one_order(reducer):
    actions = tuple(Action("register", where, 1) for where in range(6))
    nodes = (Node("Dummy"), Node("Divide"), Node("Conv1D"))
    plan = Plan("words", nodes, dtype="float64", optimizer="mean of global", actions=actions)
    on_ranks(Setting(plan, reducer, 2, (0, 1)))
