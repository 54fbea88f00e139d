"""Communicators: of threads, of one process, and by NCCL, with threads in place of GPUs."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

import singanet
from singanet import parallel
from singanet.device import Device
from singanet.errors import ArgumentError, BackendError, RankError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import ops_for
from singanet.optimizer import SGD
from singanet.parallel import AllReduce, LocalSGD, Sharded, SparseAllReduce, initialize
from singanet.parallel.communicators import nccl
from singanet.parallel.communicators import timeline as timelines
from singanet.parallel.communicators.nccl import NcclCommunicator
from singanet.testing import communicators, strict_device
from singanet.testing.device_like import device_like
from tests.kit.ranks import together
from tests.parallel.communicators.communicator_case import CommunicatorCase

RNG = np.random.default_rng(3)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
KINDS = ("FLOAT16", "FLOAT32", "FLOAT64", "INT32", "INT64", "UINT8")


class TestRanksOfThreads(CommunicatorCase):
    def run(self, work, size):
        together(work, size)


class TestASingleProcess(CommunicatorCase):
    sizes = (1,)

    def run(self, work, size):
        work(parallel.SingleProcess())


# -- by NCCL --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _pointers(monkeypatch):
    """Where arrays lie, NCCL of threads is given the arrays."""
    monkeypatch.setattr(nccl, "_pointer", lambda array: array)


class Nccl:
    """The functions of ``cupy.cuda.nccl`` by the arguments that CuPy documents, over threads."""

    available = True
    NCCL_SUM, NCCL_MAX, NCCL_MIN = "sum", "max", "min"

    def __init__(self, wire, told):
        self.wire, self.told = wire, told
        for k, name in enumerate(KINDS):
            setattr(self, f"NCCL_{name}", k)

    def get_unique_id(self):
        assert self.wire.rank == 0
        return tuple(range(-64, 64))

    def NcclCommunicator(self, size, unique, rank):
        assert (size, rank) == (self.wire.size, self.wire.rank)
        assert unique == tuple(range(-64, 64))
        return self

    def _expect(self, array, count, kind, stream):
        assert stream > 0
        assert KINDS[kind].lower() == array.dtype.name
        assert count == array.size
        self.told.append(array.nbytes)

    def allReduce(self, source, target, count, kind, op, stream):
        self._expect(source, count, kind, stream)
        target.set(self.wire.all_reduce(source.get(), op))

    def allGather(self, source, target, count, kind, stream):
        self._expect(source, count, kind, stream)
        for k, part in enumerate(self.wire.all_gather(source.get())):
            target[k].set(part)

    def reduceScatter(self, source, target, count, kind, op, stream):
        assert source.size == count * self.wire.size
        self._expect(target, count, kind, stream)
        summed = self.wire.all_reduce(source.get(), op)
        part = slice(self.wire.rank * count, (self.wire.rank + 1) * count)
        target.set(summed[part])

    def broadcast(self, source, target, count, kind, root, stream):
        self._expect(source, count, kind, stream)
        target.set(self.wire.broadcast(source.get(), root))


class Cupy:
    """Arrays as strict as a GPU's, with a NCCL."""

    def __init__(self, wire, told):
        self.cuda = SimpleNamespace(**vars(device_like.cuda), nccl=Nccl(wire, told))

    def __getattr__(self, name):
        return getattr(device_like, name)


def on_host(array):
    return array.get() if hasattr(array, "get") else array


def on_gpus(work, size=2):
    """``work(comm, told)`` of every rank; ``told`` are the bytes that each gave to NCCL."""
    with communicators(size) as control, communicators(size) as wire:
        told = [[] for _ in control]

        def one(comm):
            cupy = Cupy(wire[comm.rank], told[comm.rank])
            return work(NcclCommunicator(0, comm, cupy))

        made = control.run(one)
        assert all(each.over == "" for each in (control[0]._world, wire[0]._world))
        return made, told


class TestNccl(CommunicatorCase):
    put, get = staticmethod(device_like.asarray), staticmethod(on_host)

    def run(self, work, size):
        on_gpus(lambda comm, told=None: work(comm), size)


class TestHostArraysBesideNccl(CommunicatorCase):
    def run(self, work, size):
        assert on_gpus(work, size)[1] == [[]] * size


@pytest.mark.parametrize("size", [2, 3])
def test_parts_are_filled_up_to_the_longest(size):
    def work(comm):
        comm.all_reduce(device_like.asarray(np.ones(4, np.float32)))
        comm.all_gather(device_like.asarray(np.zeros((comm.rank + 1, 2), np.int64)))
        comm._start_reduce_scatter(
            device_like.asarray(np.ones(6)), [0, 1, *[1] * (size - 2), 6]
        ).wait()

    # Of rows of 16 bytes as many as the longest has; 5 of 6 elements.
    assert on_gpus(work, size)[1] == [[16, 16 * size, 40]] * size


def net_on(device):
    net = singanet.FeedForwardNet(
        [Dense("a", 40, input_sample_shape=(6,)), Activation("relu"), Dense("b", 4)],
        loss=SoftmaxCrossEntropy(),
        seed=1,
    )
    return net.to_device(device) or net


@pytest.mark.parametrize(
    ("wrap", "by_nccl"),
    [
        (AllReduce, True),
        (lambda rule, comm: Sharded(rule, comm, 2, smallest=100), True),
        (lambda rule, comm: AllReduce(rule, comm, dtype="float16"), False),
        (lambda rule, comm: SparseAllReduce(rule, comm, ratio=0.1), False),
        (lambda rule, comm: LocalSGD(rule, comm, every=2), False),
    ],
)
def test_a_net_on_gpus_trains_as_on_cpus(wrap, by_nccl):
    def trained(device, comm):
        net, optimizer = net_on(device), wrap(SGD(lr=0.1, momentum=0.9), comm)
        own = device.put(X[comm.rank :: 2]), device.put(Y[comm.rank :: 2])
        for _ in range(4):
            net.step(*own, optimizer)
        assert not net.programs.refusals
        assert any("communication" in report.phases() for report in net.programs.reports())
        return [np.array(ops_for(p.value).host(p.value)) for p in net.params()]

    made, told = on_gpus(lambda comm: trained(strict_device(), comm))
    expected = together(lambda comm: trained(singanet.device.cpu(), comm))
    for values, others in zip(made, expected, strict=True):
        for value, other in zip(values, others, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)
    assert bool(told[0]) == by_nccl


def test_what_nccl_does_not_take_is_refused():
    def work(comm):
        with pytest.raises(ArgumentError, match="contiguous array of float16"):
            comm.all_reduce(device_like.asarray(np.zeros(3, bool)))
        with pytest.raises(ArgumentError, match="ascontiguousarray"):
            comm.all_reduce(device_like.asarray(np.zeros((3, 4)))[:, ::2])

    on_gpus(work)


def test_a_cupy_without_nccl_is_told():
    with communicators(2) as comms:
        cupy = Cupy(comms[0], [])
        cupy.cuda.nccl.available = False
        with pytest.raises(BackendError, match="finds NCCL"):
            NcclCommunicator(0, comms[0], cupy)


def test_a_gpu_that_does_not_answer_is_told():
    def work(comm):
        comm.deadline = 0.01
        request = comm.start_all_reduce(device_like.asarray(np.zeros(3)), what="the sum of w")
        request._done = SimpleNamespace(done=False)
        with pytest.raises(RankError, match=r"the sum of w.* within 0.01 s"):
            request.wait()

    on_gpus(work)


def test_the_communicator_fits_the_device(monkeypatch):
    monkeypatch.setattr(initialize, "_on_gpu", lambda index: f"NCCL on {index}")
    gpu = Device("cuda:1", singanet.device.cpu().ops, 1)
    assert isinstance(parallel.init(gpu), parallel.SingleProcess)
    with communicators(2) as comms:
        monkeypatch.setattr(initialize, "_world", lambda: comms[0])
        assert parallel.init() is comms[0]
        assert parallel.init(singanet.device.cpu()) is comms[0]
        assert parallel.init(gpu) == "NCCL on 1"


def test_events_are_as_long_as_they_were(tmp_path, monkeypatch):
    seconds = itertools.count(100.0)
    monkeypatch.setattr(timelines, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    timeline = timelines.Timeline(tmp_path / "part", parallel.SingleProcess())
    # The clock was read twice, and is read once to tell of an event: at 102, 103 and 105.
    timeline.add("waiting", "the gradients of fc", 101.0)
    timeline.step(1)
    timeline.step(2)
    events = [json.loads(line) for line in (tmp_path / "part").read_text("utf-8").splitlines()]
    found = [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X"]
    wanted = [("the gradients of fc", 1.0, 1.0), ("step 0", 1.0, 2.0), ("step 1", 4.0, 1.0)]
    assert found == wanted
