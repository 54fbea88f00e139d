"""Gradients sent in part, by a few elements or a few columns and rows; on ranks as threads."""

import math
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, DataError, RankError, ShapeError, SingaNetError
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm
from singanet.parallel import (
    AllReduce,
    LocalSGD,
    PartialUpdate,
    PowerSGD,
    Sharded,
    SingleProcess,
    SparseAllReduce,
)
from singanet.parallel.reductions.compressed import largest, reaching
from singanet.testing import communicators
from tests.kit.nets import dense_net, two_heads, values_of, words_net
from tests.kit.ranks import expect_near_values, expect_same_bits, expect_same_values, together
from tests.parallel.reductions.reducer_settings import X, Y

RNG = np.random.default_rng(7)
RULE, MOVING = SGD(lr=0.1), SGD(lr=0.1, momentum=0.9)


def one_matrix(rows=30, columns=7):
    layer = Dense("w", columns, input_sample_shape=(rows,), use_bias=False)
    return singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)


def flat(fill=0.0, **at):
    """A gradient of `one_matrix` that has other values at the places ``_k``."""
    grad = np.full((30, 7), fill, np.float32)
    for place, value in at.items():
        grad.flat[int(place[1:])] = value
    return grad


def fed(optimizer, steps, net=None):
    """The net after updates by ``steps`` of (count, gradient or None), and how far it moved."""
    net = net or one_matrix()
    optimizer.meet(net)
    (param,) = net.params()
    before = param.value.copy()
    for count, grad in steps:
        optimizer.begin(count)
        if grad is not None:
            optimizer.update([param.name], [param.value], [grad.reshape(param.shape)])
        optimizer.end()
    return net, (before - param.value).ravel()


def sparse(comm, *options, lr=1.0, **more):
    return SparseAllReduce(SGD(lr=lr), comm, *options, **more)


# -- against formulas -----------------------------------------------------------------------------


def by_hand(grads, counts, size, ratio, threshold, momentum, warm_up, feedback):
    """The sum that is applied and the rest, by the papers' formulas in plain loops, float64."""
    left, moved = (np.zeros((size, grads[0][0].size)) for _ in range(2))
    applied = np.zeros(grads[0][0].size)
    for t, (of_ranks, weights) in enumerate(zip(grads, counts, strict=True)):
        for rank in np.flatnonzero(weights):
            g = of_ranks[rank].astype(float).ravel() * weights[rank] / sum(weights)
            moved[rank] = momentum * moved[rank] + g
            left[rank] += moved[rank]
            now = ratio
            if t < warm_up:
                now = max(ratio, 0.25 * (ratio / 0.25) ** (t / warm_up))
            if threshold is None:
                sent = np.argsort(-abs(left[rank]), kind="stable")[: math.ceil(now * g.size)]
            else:
                sent = np.nonzero(abs(left[rank]) >= threshold)[0]
            applied[sent] += left[rank][sent]
            left[rank][sent if feedback else slice(None)] = moved[rank][sent] = 0
    return applied, left


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(2, 3))
def test_what_is_applied_and_what_is_kept_follow_the_formulas(data, size):
    seed = data.draw(st.integers(0, 999))
    threshold = data.draw(st.sampled_from([None, 0.0, 0.3, 1.5]))
    ratio = data.draw(st.sampled_from([0.004, 0.05, 0.6, 1.0])) if threshold is None else None
    momentum, feedback = data.draw(st.sampled_from([(0.0, True), (0.9, True), (0.0, False)]))
    warm_up = data.draw(st.sampled_from([0, 3])) if ratio else 0
    of_step = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    counts = data.draw(st.lists(of_step, min_size=1, max_size=5))
    rng = np.random.default_rng(seed)
    grads = [[rng.standard_normal((30, 7)).astype(np.float32) for _ in c] for c in counts]

    def work(comm):
        more = {"momentum": momentum, "warm_up": warm_up, "error_feedback": feedback}
        optimizer = sparse(comm, ratio, threshold, **more)
        own = [(c[comm.rank], g[comm.rank]) for c, g in zip(counts, grads, strict=True)]
        net, moved = fed(optimizer, [(count, grad if count else None) for count, grad in own])
        state = optimizer.state_dict()
        assert feedback or "w/weight/unsent" not in state
        return net, moved, state.get("w/weight/unsent", np.zeros(moved.size))

    made = together(work, size)
    expect_same_bits([net for net, *_ in made])
    applied, left = by_hand(grads, counts, size, ratio, threshold, momentum, warm_up, feedback)
    np.testing.assert_allclose(made[0][1], applied, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([rest for *_, rest in made], left, rtol=1e-4, atol=1e-5)


def gradients(net, x, y):
    net.loss.forward(True, net.forward(True, x), y)
    found = {}
    for names, _, grads in net.backward(net.loss.backward()):
        found |= dict(zip(names, (np.array(grad) for grad in grads), strict=True))
    return found


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("records", [True, False])
def test_sums_of_low_rank_follow_the_formula(records, warm, feedback):
    parts, rank, steps = (slice(0, 5), slice(5, 24)), 2, 4

    def wide():
        net = dense_net(wide=60)
        net.as_type("float64")
        return net

    def work(comm):
        net, optimizer = wide(), PowerSGD(SGD(lr=0.2), comm, rank, warm, feedback)
        net.programs.enabled = records
        for _ in range(steps):
            net.step(X[parts[comm.rank]], Y[parts[comm.rank]], optimizer)
        return values_of(net), optimizer._own_state()

    found = together(work)
    expect_same_values([values for values, _ in found])
    net, shares = wide(), (5 / 24, 19 / 24)
    by_name = {param.name: param for param in net.params()}
    # Of d, 40 × 4, as many numbers would be sent as it has, but for a few.
    low = ["a/weight", "b/weight", "c/weight"]
    rest, start = {(k, name): 0.0 for k in range(2) for name in low}, {}
    for step in range(steps):
        of_ranks = [gradients(net, X[part], Y[part]) for part in parts]
        sums = {n: sum(s * g[n] for s, g in zip(shares, of_ranks, strict=True)) for n in by_name}
        for name in low:
            seed = [zlib.crc32(name.encode()), step if not warm else 0]
            q = np.random.default_rng(seed).standard_normal((by_name[name].shape[1], rank))
            q = start.get(name, q) if warm else q
            mine = [shares[k] * of_ranks[k][name] + rest[k, name] for k in range(2)]
            p, _ = np.linalg.qr(sum(mine) @ q)
            for k in range(2) if feedback else ():
                rest[k, name] = mine[k] - p @ (p.T @ mine[k])
            start[name] = sum(mine).T @ p
            sums[name] = p @ p.T @ sum(mine)
        for name, param in by_name.items():
            param.value[...] -= 0.2 * sums[name]
    expect_near_values(found[0][0], values_of(net), 1e-8, 1e-10)
    for k, (_, state) in enumerate(found):
        for name in low if feedback else ():
            kept = state[f"{name}/unsent"].reshape(by_name[name].shape)
            np.testing.assert_allclose(kept, rest[k, name], 1e-7, 1e-10)


def test_a_parameter_whose_gradients_begin_as_zeros_is_trained():
    def work(comm, kind, **options):
        net, optimizer = dense_net(wide=100), kind(SGD(lr=0.5), comm, **options)
        # So that the first gradient of b is zero, and the later ones are not.
        net["c"].params["weight"].value[...] = 0
        before = values_of(net)["b/weight"]
        for _ in range(20):
            net.step(X, Y, optimizer)
        return np.linalg.norm(values_of(net)["b/weight"] - before)

    whole = together(lambda comm: work(comm, AllReduce))[0]
    assert 0.5 * whole < together(lambda comm: work(comm, PowerSGD, rank=2))[0] < 2 * whole


# -- messages -------------------------------------------------------------------------------------


def test_exactly_k_are_sent_and_small_parameters_are_chosen_from_together():
    heard = []

    def work(comm):
        gather = comm._start_all_gather

        def counted(array, what="an all-gather"):
            heard.append((comm.rank, what, array.dtype, array.nbytes))
            return gather(array, what)

        comm._start_all_gather = counted
        net, optimizer = dense_net(), sparse(comm, lr=0.1, ratio=0.01)
        net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return optimizer.exchanged

    first, second = together(work)
    sent = [each for each in heard if each[0] == 0 and each[1].startswith("the gradients")]
    # 240 + 40 + 500 + 40 + 160 + 4 elements in one message, and of the 20,000 twice by themselves.
    sizes = sorted(nbytes for *_, nbytes in sent)
    small = 4 * 7 + 8 * math.ceil(0.01 * (240 + 40 + 500 + 40 + 160 + 4))
    assert sizes == sorted([small, *[4 * 2 + 8 * 200] * 2])
    # Indices do not ride among floats, which have no odd number above 2^24.
    assert all(dtype == np.uint8 for _, _, dtype, _ in sent)
    assert (first.sent, first.received) == (second.received, second.sent)
    # Beside these, only the announcement of a step.
    assert 0 <= first.sent - sum(sizes) < 100


@pytest.mark.parametrize("size", [2, 3])
def test_low_rank_sends_few_bytes(size):
    def sent(comm, kind, **options):
        net, optimizer = dense_net(wide=2000), kind(SGD(lr=0.1), comm, **options)
        net.step(X, Y, optimizer)
        before = comm.exchanged
        net.step(X, Y, optimizer)
        return comm.exchanged.since(before).sent

    whole = together(lambda comm: sent(comm, AllReduce), size)[0]
    few = together(lambda comm: sent(comm, PowerSGD, rank=2), size)[0]
    rest = 6 * 40 + 40 + 2000 + 40 + 40 * 4 + 4
    parts = (2 * (40 + 2000) * 2 + rest) / (40 * 2000 * 2 + rest)
    assert few / whole == pytest.approx(parts, rel=0.05)


def test_ranks_send_as_many_as_they_have():
    def work(comm):
        optimizer = sparse(comm, threshold=0.5)
        grad = flat() if comm.rank else flat(_1=2.0, _3=-0.5, _209=4.0)  # a half is their weight
        return fed(optimizer, [(1, grad)])[1], optimizer.exchanged

    (moved, first), (same, second) = together(work)
    np.testing.assert_array_equal(moved, same)
    assert np.flatnonzero(abs(moved) > 1e-7).tolist() == [1, 209]
    assert first.sent - second.sent == 2 * 8


@pytest.mark.slow
def test_places_beyond_what_a_float32_counts_are_exact():
    # SINGA's indices rode among floats; no odd number above 2^24 is one.
    last = 4097 * 4099 - 1
    assert int(np.float32(last - 1)) != last - 1

    def work(comm):
        grad = np.zeros((4097, 4099), np.float32)
        grad.flat[last - comm.rank] = 2.0
        return fed(sparse(comm, threshold=0.5), [(1, grad)], one_matrix(4097, 4099))[1][last - 2 :]

    for moved in together(work):
        np.testing.assert_allclose(moved, [0.0, 1.0, 1.0], atol=1e-6)


def test_feedback_may_begin_later():
    # SINGA had no list for what was left once it had begun without.
    def work(comm):
        first, second = (
            SparseAllReduce(SGD(lr=1.0, momentum=0.5), comm, 0.1, error_feedback=feedback)
            for feedback in (False, True)
        )
        net, _ = fed(first, [(1, flat(1.0))])
        second.load_state_dict(first.state_dict())
        fed(second, [(1, flat(1.0))], net)
        return np.count_nonzero(second.state_dict()["w/weight/unsent"])

    assert together(work) == [210 - 21] * 2


def test_what_is_not_finite_is_sent_and_does_not_stay():
    def work(comm):
        optimizer = sparse(comm, ratio=1 / 210)
        grad = flat(0.01, _100=np.nan) if comm.rank else flat(0.01)
        return fed(optimizer, [(1, grad)])[0], optimizer.state_dict()["w/weight/unsent"]

    (net, left), (other, others) = together(work)
    expect_same_bits([net, other])
    assert np.flatnonzero(np.isnan(net.params()[0].value.ravel())).tolist() == [100]
    assert np.isfinite([left, others]).all()


# -- with all else --------------------------------------------------------------------------------


def test_the_norm_that_clips_is_of_the_sum_that_is_applied():
    grads = RNG.standard_normal((4, 2, 30, 7)).astype(np.float32)

    def trained(rule):
        def work(comm):
            optimizer, net, moved = SparseAllReduce(rule(), comm, ratio=0.05), one_matrix(), []
            for each in grads[:, comm.rank]:
                # The gradient of a sum of squares over 30 rows: a mean over x w - y.
                before = net.params()[0].value.reshape(30, 7).copy()
                net.step(np.eye(30, dtype=np.float32), before - 30 * each, optimizer)
                moved.append(before - net.params()[0].value.reshape(30, 7))
            return moved

        return together(work)[0]

    clipped = trained(lambda: ClipByGlobalNorm(SGD(lr=1.0), 0.5))
    for moved, cut in zip(trained(lambda: SGD(lr=1.0)), clipped, strict=True):
        norm = np.linalg.norm(moved)
        assert norm > 0.5
        np.testing.assert_allclose(cut, moved * (0.5 / norm), rtol=2e-3, atol=2e-5)


def test_rows_are_sent_whole_and_only_they_move():
    words = RNG.integers(0, 20, (24, 3))

    def work(comm):
        net = words_net()
        for _ in range(3):
            net.step(words[comm.rank :: 2], Y[comm.rank :: 2], sparse(comm, lr=0.5))
        return net

    nets = together(work)
    expect_same_bits(nets)
    before, after = (values_of(net)["e/weight"] for net in (words_net(), nets[0]))
    assert (before != after).any(axis=1).tolist() == [k in words for k in range(50)]


def test_what_is_not_reached_is_kept_for_when_it_is():
    def work(comm):
        net, moved = two_heads(), []
        optimizer = SparseAllReduce(SGD(lr=0.1, weight_decay=0.1), comm, 0.1)
        optimizer.meet(net)
        for k in range(3):
            # Nobody reaches "right" at first, then rank 1 alone does.
            head, before = "right" if k == 1 and comm.rank else "left", values_of(net)
            net.forward(True, X[:2])
            optimizer.begin(2)
            for item in net.backward({head: np.ones((2, 2 if head == "right" else 3), "f")}):
                optimizer.update(*item)
            optimizer.end()
            now = values_of(net)
            moved.append({name for name in now if (now[name] != before[name]).any()})
        return net, moved

    (net, moved), (other, _) = together(work)
    expect_same_bits([net, other])
    # The decay moves all elements of what anybody has reached, and nothing else.
    assert [any("right" in name for name in each) for each in moved] == [False, True, False]
    assert all(any("left" in name for name in each) for each in moved)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_lone_process_trains_densely_with_momentum_if_asked(momentum):
    nets = [dense_net(), dense_net()]
    inner = ClipByGlobalNorm(SGD(lr=0.1), 0.05) if not momentum else SGD(lr=0.1)
    rule = inner if not momentum else SGD(lr=0.1, momentum=momentum)
    same = SparseAllReduce(inner, SingleProcess(), momentum=momentum)
    for net, optimizer in zip(nets, (rule, same), strict=True):
        for _ in range(4):
            net.step(X, Y, optimizer)
    expect_near_values(values_of(nets[1]), values_of(nets[0]), 1e-4, 1e-6)


# -- files ----------------------------------------------------------------------------------------


def moving(comm):
    return SparseAllReduce(SGD(lr=0.1, momentum=0.9), comm)


def state_of(comm):
    optimizer = moving(comm)
    fed(optimizer, [(1, flat(1.0))])
    return optimizer.state_dict()


def test_the_state_of_another_rank_leaves_out_what_that_had_not_sent():
    first, _ = together(state_of)

    def work(comm):
        optimizer = moving(comm)
        if comm.rank:
            with pytest.warns(RuntimeWarning, match="rank 0 of 2"):
                optimizer.load_state_dict(first)
        else:
            optimizer.load_state_dict(first)
        return optimizer.state_dict()

    own, other = together(work)
    assert sorted(own) == sorted(first)
    np.testing.assert_array_equal(own["w/weight/momentum"], other["w/weight/momentum"])
    assert "w/weight/unsent" not in other


@pytest.mark.parametrize("later", [False, True])
def test_state_that_does_not_fit_is_refused_and_nothing_changed(later):
    first, _ = together(state_of)
    with communicators(2) as comms:
        optimizer = moving(comms[0])
        with pytest.raises(DataError, match="rank"):
            optimizer.load_state_dict({k: v for k, v in first.items() if k != "*/unsent"})
        assert sorted(optimizer.state_dict()) == ["*/unsent"]

    def meets(comm):
        optimizer, net = moving(comm), one_matrix(4, 4)
        if later:
            optimizer.meet(net)
        if not comm.rank:
            optimizer.load_state_dict(first)
        optimizer.meet(net)

    with pytest.raises((ShapeError, RankError), match="16 unsent elements|failed"):
        together(meets)


# -- options --------------------------------------------------------------------------------------


def test_a_threshold_that_nothing_reaches_is_told():
    """SINGA's fusing size is called threshold, too. The rank that has nothing to send is silent."""

    def work(comm):
        grad = flat() if comm.rank else flat(0.01)
        fed(sparse(comm, threshold=2097152), [(1, grad)] * 22)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        together(work)
    (one,) = told
    assert one.category is RuntimeWarning
    assert "2097152" in str(one.message)
    assert "nothing was sent in 10 steps" in str(one.message)
    # Warnings are errors here: a threshold that is reached now and then gives none.
    together(lambda comm: fed(sparse(comm, threshold=0.4), [(1, flat(0.1))] * 30))


@pytest.mark.parametrize(
    ("kind", "made", "name", "value"),
    [
        (SparseAllReduce, {"ratio": 0.1, "error_feedback": False}, "error_feedback", True),
        (SparseAllReduce, {"ratio": 0.1}, "error_feedback", False),
        (SparseAllReduce, {"ratio": 0.1}, "ratio", 0.3),
        (SparseAllReduce, {"ratio": 0.1}, "threshold", 0.05),
        (SparseAllReduce, {"threshold": 0.05}, "ratio", 0.1),
        (SparseAllReduce, {"ratio": 0.1}, "momentum", 0.9),
        (SparseAllReduce, {"ratio": 0.1, "momentum": 0.9}, "momentum", 0.0),
        (SparseAllReduce, {"ratio": 0.1}, "warm_up", 3),
        (PowerSGD, {"rank": 1}, "error_feedback", False),
        (PowerSGD, {"rank": 1, "error_feedback": False}, "error_feedback", True),
        (PowerSGD, {"rank": 1}, "warm_start", False),
    ],
)
@pytest.mark.parametrize("after", [0, 5])
def test_what_is_assigned_is_heard(kind, made, name, value, after):
    """As with a reducer constructed so, recorded or not."""
    alone = {**made, name: value}
    if {"ratio", "threshold"} <= alone.keys():
        del alone["ratio" if name == "threshold" else "threshold"]

    def work(comm):
        found = []
        for assigned in (True, False):
            net, optimizer = dense_net(), kind(SGD(lr=0.1), comm, **made)
            for k in range(after + 5):
                if k == after and assigned:
                    setattr(optimizer, name, value)
                    assert getattr(optimizer, name) == value
                elif k == after:
                    state = optimizer.state_dict()
                    optimizer = kind(SGD(lr=0.1), comm, **alone)
                    if after:
                        optimizer.load_state_dict(state)
                net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
            found.append(values_of(net))
        return found

    for each in together(work):
        expect_same_values(each)


@pytest.mark.parametrize(
    ("kind", "rule", "options", "told"),
    [
        (SparseAllReduce, RULE, {"ratio": 0.1, "threshold": 0.1}, "remove one"),
        (SparseAllReduce, RULE, {"ratio": 0.0}, "above 0"),
        (SparseAllReduce, RULE, {"ratio": 1.5}, "at most 1"),
        (SparseAllReduce, RULE, {"threshold": float("inf")}, "from 0 on"),
        (SparseAllReduce, RULE, {"threshold": True}, "from 0 on"),
        (SparseAllReduce, RULE, {"threshold": 0.1, "warm_up": 3}, "the warm-up reaches"),
        (SparseAllReduce, MOVING, {"momentum": 0.9}, "a rule without momentum"),
        (SparseAllReduce, Adam(lr=0.1), {"momentum": 0.9}, "a rule without momentum"),
        (SparseAllReduce, RULE, {"momentum": 0.9, "error_feedback": False}, "error_feedback=True"),
        (LocalSGD, Accumulator(RULE, 2), {}, "process's own batch"),
        (LocalSGD, AllReduce(RULE), {}, "remove one"),
        (LocalSGD, RULE, {"every": 0}, "every"),
        (PartialUpdate, RULE, {"partitions": 0}, "partitions"),
        (PowerSGD, RULE, {"rank": 0}, "rank"),
        (Sharded, RULE, {"level": 4}, r"level=\): expected 1"),
    ],
)
def test_what_does_not_go_together_is_refused(kind, rule, options, told):
    with pytest.raises(ArgumentError, match=told):
        kind(rule, **options)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"threshold": 0.1}, "warm_up", 3),
        ({"momentum": 0.5}, "error_feedback", False),
        ({}, "momentum", 0.5),
    ],
)
def test_what_would_not_be_heard_is_refused(options, name, value):
    made = SparseAllReduce(RULE if options else MOVING, **options)
    before = repr(made)
    with pytest.raises(SingaNetError):
        setattr(made, name, value)
    assert repr(made) == before


def test_a_threshold_replaces_the_warm_up_too():
    """It could not be put around another optimizer, as `fit` with ``clip`` does."""
    made = SparseAllReduce(SGD(lr=0.1), ratio=0.1, warm_up=3)
    made.threshold = 0.05
    other = made._remade(SGD(lr=0.1))
    assert (other.ratio, other.threshold, other.warm_up) == (None, 0.05, 0)


# -- selection ------------------------------------------------------------------------------------

SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tail": lambda rng, n: rng.standard_cauchy(n),
    "mostly zero": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 1e-3),
    "many equal": lambda rng, n: rng.integers(-3, 4, n),
    "all equal": lambda rng, n: np.full(n, -2.0),
    "periodic": lambda rng, n: np.where(np.arange(n) % 127 == 0, 1.0, 1e-3 * rng.random(n)),
    "one end": lambda rng, n: np.where(np.arange(n) < n // 50, 9.0, rng.random(n)),
    "not finite": lambda rng, n: np.where(
        rng.random(n) < 1e-3, rng.choice([np.nan, np.inf, -np.inf], n), rng.standard_normal(n)
    ),
}


def sorted_out(values, count):
    """By a full sort, as SINGA does: the largest first, of equals the first."""
    sizes = np.nan_to_num(np.abs(values).astype(float), nan=np.inf, posinf=np.inf)
    return sorted(np.lexsort((np.arange(len(sizes)), -sizes))[:count].tolist())


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.one_of(st.integers(1, 300), st.integers(16_000, 40_000)),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_exactly_k_are_chosen_and_they_are_the_largest(shape, size, share, seed):
    values = SHAPES[shape](np.random.default_rng(seed), size).astype(np.float32)
    for count in {0, 1, int(share**4 * size), size, size + 3}:
        assert largest(values, count).tolist() == sorted_out(values, count)


def test_a_large_gradient_is_hardly_sorted(monkeypatch):
    partition = np.partition
    for shape, draw in SHAPES.items():
        values = draw(np.random.default_rng(1), 1 << 18).astype(np.float32)
        expected, sizes = sorted_out(values, 263), []
        with monkeypatch.context() as patch:
            counted = lambda a, k, sizes=sizes: (sizes.append(a.size), partition(a, k))[1]  # noqa: E731
            patch.setattr(np, "partition", counted)
            assert largest(values, 263).tolist() == expected, shape
        if shape in ("normal", "heavy tail", "not finite"):
            assert sum(sizes) < values.size / 50, shape


def test_a_threshold_keeps_what_is_equal_to_it():
    values = np.array([0.0, -0.5, 0.49, np.nan, 0.5, np.inf, -0.7], np.float32)
    assert reaching(values, 0.5).tolist() == [1, 3, 4, 5, 6]
    # SINGA counted what lay behind the ones it had kept.
    assert reaching(np.array([0.0, 2, 0, 4]), 1.0).tolist() == [1, 3]
