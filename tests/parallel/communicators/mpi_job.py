"""What ranks of real jobs do: the functions that the command line names, with its last word."""

import os
import signal
import sys
import time

import numpy as np

import singanet
from singanet import parallel
from singanet.data import ArrayLoader
from singanet.layers import Activation, Add, BatchNormalization, Dense, Dropout

from singanet.layers import Embedding, Flatten, Input, Layer  # isort: skip
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import AUC, Accuracy
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm
from singanet.training.callbacks import ModelCheckpoint
from tests.kit.callbacks import at

WORDS, KINDS = np.random.default_rng(0).integers(0, 30, (19, 4)), np.arange(19) % 3


def net_of(*layers, seed=1):
    return singanet.FeedForwardNet([*layers], loss=SoftmaxCrossEntropy(), seed=seed)


def words_net(seed):
    table = Embedding("e", 40, 8, input_sample_shape=(4,))
    return net_of(
        table, Flatten("f"), Dense("a", 600), Activation("relu"), Dense("b", 3), seed=seed
    )


def expect_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def trains(world, folder):
    """Of all ranks, and of one process."""
    for name, comm in (("all", world), ("one", parallel.SingleProcess())):
        if name == "one" and world.rank:
            continue
        net = words_net(comm.rank)
        net.compile(parallel.AllReduce(SGD(lr=0.2, momentum=0.9), comm))
        loader = ArrayLoader(
            WORDS, KINDS, 6 // comm.size, seed=1, rank=comm.rank, world_size=comm.size
        )
        net.fit(loader, epochs=3, clip=0.5, clip_by="global", verbose=False)
        values = [value.copy() for value in net.param_values()]
        half = parallel.AllReduce(SGD(lr=0.2), comm, window=1, dtype="float16")
        own = slice(comm.rank, None, comm.size)
        for _ in range(6):
            net.step(WORDS[own], KINDS[own], half)
        np.savez(f"{folder}/{name}.{comm.rank}.npz", *values, *net.param_values())


class Yes(AUC):
    def update(self, x, y):
        super().update(x[:, 1], y == 1)


def fits(world, folder):
    """Whole, interrupted at one rank, and gone on."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((41, 6), np.float32), rng.integers(0, 3, 41)

    def fit(name, comm, dropout, place, callbacks=(), resume=None):
        made = [BatchNormalization("n", synchronized=True), Activation("relu")]
        first = Dense("a", 16, input_sample_shape=(6,))
        net = net_of(first, *made, Dropout("d", dropout), Dense("b", 3), seed=0)
        rule = parallel.AllReduce(SGD(lr=0.1, momentum=0.9), comm)
        net.compile(rule, metrics=[Accuracy(), Yes()])
        callbacks = [ModelCheckpoint(os.path.join(folder, place)), *callbacks]
        history = net.fit(x, y, 6, 4, validation_data=(x[:7], y[:7]), callbacks=callbacks,
                          resume=resume, verbose=False)  # fmt: skip
        numbers = [v for k, v in history.items() if not k.startswith("bytes")]
        np.savez(f"{folder}/{name}.{comm.rank}.npz", *net.param_values(), *numbers)

    def interrupts(session, batch):
        if session.rank == 1 and session.step == 9:
            os.kill(os.getpid(), signal.SIGINT)

    if world.rank == 0:
        fit("alone", parallel.SingleProcess(), 0.0, "a")
    fit("together", world, 0.0, "b")
    fit("whole", world, 0.3, "c")
    try:
        fit("never", world, 0.3, "d", [at("on_batch_begin", interrupts)])
    except KeyboardInterrupt:
        fit("resumed", world, 0.3, "d", resume=os.path.join(folder, "d"))


def records(comm, folder):
    """The contract of communicators, and steps recorded by all, by none, and by rank 0 alone."""
    from tests.parallel.communicators.communicator_case import CHECKS

    for check in CHECKS:
        check(comm, np.asarray, np.asarray)
    rng, made = np.random.default_rng(0), []
    x, y = rng.standard_normal((24, 50), np.float32), rng.integers(0, 9, 24)
    for records in (True, False, comm.rank == 0):
        net = net_of(Dense("a", 900, input_sample_shape=(50,)), Activation("relu"), Dense("b", 9))
        net.programs.enabled = records
        optimizer = parallel.AllReduce(SGD(lr=0.1, momentum=0.9))
        for k in range(6):
            own = slice(comm.rank, 24 - k % 2, comm.size)
            net.step(x[own], y[own], optimizer)
        made.append(net.param_values())
        if records:
            assert net.programs.reports(), net.programs.refusals
            assert optimizer.traffic.sums == 12
    expect_same(made[0], made[1])
    expect_same(made[0], made[2])
    expect_same([comm.broadcast(value.copy()) for value in made[0]], made[0])


def methods(comm, folder):
    """Other reducers: values alike, losses that fall, bytes sent by one and received by another."""
    own = slice(comm.rank, None, comm.size)
    for wrap in (
        lambda rule: parallel.SparseAllReduce(rule, ratio=0.05),
        lambda rule: parallel.SparseAllReduce(rule, threshold=0.01),
        lambda rule: parallel.PartialUpdate(rule, partitions=5),
        lambda rule: parallel.LocalSGD(rule, every=3),
        lambda rule: parallel.Sharded(rule, smallest=100),
        lambda rule: parallel.Sharded(rule, level=2, smallest=100),
        lambda rule: parallel.Sharded(ClipByGlobalNorm(rule, 1.0), level=2, smallest=100),
    ):
        net, optimizer = words_net(comm.rank), wrap(SGD(lr=0.05, momentum=0.9))
        before = comm.exchanged
        losses = [net.step(WORDS[own], KINDS[own], optimizer)[0] for _ in range(7)]
        optimizer.join()
        exchanged = np.array([comm.exchanged.since(before)], np.float64)
        assert losses[-1] < losses[0], losses
        for value in net.param_values():
            first, *others = comm.all_gather(value)
            assert all(np.array_equal(first, other) for other in others), optimizer
        sent, received = comm.all_reduce(exchanged)[0]
        assert sent == received > 0, optimizer
    sys.stdout.write("all alike\n")


def slices(comm, folder):
    rng, found = np.random.default_rng(0), []
    x, y = rng.standard_normal((21, 50)).astype(np.float32), rng.integers(0, 4, 21)
    for wrap in (parallel.AllReduce, lambda rule, comm: parallel.Sharded(rule, comm, 3)):
        first = Dense("a", 700, input_sample_shape=(50,))
        net = net_of(first, Activation("t", "tanh"), Dense("b", 300), Dense("c", 4))
        net.compile(wrap(Adam(lr=0.001), comm))
        net.fit(x, y, 8, 2, verbose=False, validation_data=(x[:9], y[:9]),
                callbacks=[ModelCheckpoint(f"{folder}/slices")])  # fmt: skip
        found.append([param.peek().copy() for param in net.params()])
    held = sum(param.storage.nbytes for param in net.params())
    assert held < 0.6 * sum(param.nbytes for param in net.params())
    expect_same(*found)


def stages(comm, folder):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 30, (64, 4)), rng.integers(0, 3, 64)

    def trained(stages=None):
        ids = Input("x", (4,), dtype="int64")
        rows = Flatten("f")(Embedding("e", 40, 75)(ids))
        wide = Activation("r")(Dense("a", 300)(rows))
        scores = Dense("b", 3)(Add("plus")([wide, rows]))
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=[ids], outputs=[scores], seed=4)
        # Messages of 77 KB, which are not sent before somebody takes them.
        pipeline = parallel.Pipeline(net, stages, 2) if stages else None
        net.compile(SGD(lr=0.2, momentum=0.9))
        net.fit(x, y, 32, epochs=3, verbose=False)
        return net, pipeline

    alone = trained()[0].param_values()
    net, pipeline = trained(["a"])
    pipeline.on_first(lambda: net.save(f"{folder}/net.npz"))
    pipeline.gather()
    for one, two in zip(alone, net.param_values(), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)
    with np.load(f"{folder}/net.npz") as saved:
        assert set(saved.files) == set(net.param_names())


class Fails(Layer):
    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        raise ValueError("of all ranks")


def fails(comm, how):
    """The last rank raises or stalls in its step 7, or all raise."""
    comm.step, comm.deadline = 7, 2.0
    if comm.rank and how == "raise":
        raise KeyError("lost")
    if comm.rank and how == "stall":
        time.sleep(30)
    if how == "all":
        net_of(Fails("f", input_sample_shape=(2,))).forward(True, np.ones((1, 2)))
    comm.all_reduce(np.ones(3), what="the gradients of fc/weight")


if __name__ == "__main__":
    *names, argument = sys.argv[1:]
    world = parallel.init()
    for name in names:
        globals()[name](world, argument)
