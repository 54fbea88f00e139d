"""Reports of real nets: layouts without overlap, layers and phases that are the net's."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from singanet.models import build
from singanet.optimizer import SGD
from tests.charts import HERE, groups
from tests.program.layout.test_arena import check
from tests.program.report.test_trace_export import read


def recorded(name="lenet", batch=2):
    net = build(name, seed=0)
    x = np.zeros((batch, *net.nodes()[0].layer.in_shapes), np.float32)
    y, optimizer = np.zeros(batch, np.int64), SGD(lr=0.1, momentum=0.9)
    return net, net.record(x, y, optimizer), x, y


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_nothing_needed_at_one_time_overlaps(name):
    report = recorded(name)[1].report()
    check(report.kernels, report.buffers, report.layout)
    assert max(report.live_bytes) == report.layout.lower_bound
    assert report.layout.nbytes <= 1.02 * report.layout.lower_bound


def test_layers_and_phases_are_those_of_the_net():
    net, program, x, _ = recorded()
    report = program.report()
    names = {node.name for node in net.nodes()}
    assert set(report.layers()) - {"(no layer)", "loss"} == names
    assert list(report.phases()) == ["forward", "loss", "backward", "update"]
    updated = {kernel.layer for kernel in report.kernels if kernel.phase == "update"}
    # Small parameters, in buckets, have the kernels of their updates in common.
    small = {name for bucket in net.buckets() for name in bucket.names}
    alone = {name.partition("/")[0] for name in net.param_names() if name not in small}
    assert updated == {"", *alone}
    evaluation = net.record(x).report()
    assert list(evaluation.phases()) == ["forward"]
    assert evaluation.layout.nbytes < report.layout.nbytes


def test_kernels_take_no_longer_than_the_runs_did():
    _, program, x, y = recorded(batch=16)
    assert program.report().seconds is None
    start = time.perf_counter()
    for _ in range(3):
        program.run(x, y, timed=True)
    elapsed = time.perf_counter() - start
    report = program.report()
    assert 0 < 3 * sum(report.seconds) <= elapsed
    assert all(share.seconds > 0 for name, share in report.layers().items() if name != "(no layer)")


def test_figures_traces_and_pictures_of_a_real_program(tmp_path):
    _, program, x, y = recorded()
    program.run(x, y, timed=True)
    report = program.report()
    figures = json.loads(json.dumps(report.as_dict()))
    assert len(figures["calls"]) == figures["kernels"] == len(report.kernels)
    events = [event for event in read(report.trace(lanes="layer")) if event["ph"] == "X"]
    assert len(events) == figures["kernels"]
    if HERE:
        assert len(groups(report.plot(tmp_path / "arena.svg"), "forward")) > 5
