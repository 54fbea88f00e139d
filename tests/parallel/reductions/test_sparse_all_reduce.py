"""A few elements of each gradient: what is sent, what is kept, and that all ranks agree."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, RankError, ShapeError
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import (
    SGD,
    ClipByGlobalNorm,
)
from singanet.parallel import (
    AllReduce,
    PowerSGD,
    SingleProcess,
    SparseAllReduce,
)
from singanet.testing import communicators
from tests.kit.nets import dense_net, values_of, words_net
from tests.kit.ranks import expect_same_bits, expect_same_values, together

RNG = np.random.default_rng(7)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def one_matrix(rows=30, columns=7):
    layer = Dense("w", columns, input_sample_shape=(rows,), use_bias=False)
    return singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)


def fed(optimizer, net, steps):
    """Updates by gradients that are given: ``steps`` of (count, gradient or None)."""
    optimizer.meet(net)
    param = net.params()[0]
    for count, grad in steps:
        optimizer.begin(count)
        if grad is not None:
            optimizer.update([param.name], [param.value], [grad])
        optimizer.end()


# -- against formulas -----------------------------------------------------------------------------


def by_hand(grads, counts, size, ratio, threshold, momentum, warm_up):
    """What is added up and what is left, by the papers' formulas in plain loops, float64."""
    left, moved = (np.zeros((size, grads[0][0].size)) for _ in range(2))
    applied = np.zeros(grads[0][0].size)
    for t, (of_ranks, weights) in enumerate(zip(grads, counts, strict=True)):
        total = sum(weights)
        for rank in range(size):
            if not weights[rank]:
                continue
            g = of_ranks[rank].astype(float).ravel() * weights[rank] / total
            moved[rank] = momentum * moved[rank] + g
            left[rank] += moved[rank]
            now = ratio
            if t < warm_up:
                now = max(ratio, 0.25 * (ratio / 0.25) ** (t / warm_up))
            if threshold is None:
                k = math.ceil(now * g.size)
                sent = np.argsort(-abs(left[rank]), kind="stable")[:k]
            else:
                sent = np.nonzero(abs(left[rank]) >= threshold)[0]
            applied[sent] += left[rank][sent]
            left[rank][sent] = moved[rank][sent] = 0
    return applied, left


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(2, 3))
def test_what_is_applied_and_what_is_kept_follow_the_formulas(data, size):
    seed = data.draw(st.integers(0, 999))
    threshold = data.draw(st.sampled_from([None, 0.3, 1.5]))
    ratio = data.draw(st.sampled_from([0.004, 0.05, 0.6, 1.0])) if threshold is None else None
    momentum = data.draw(st.sampled_from([0.0, 0.9]))
    warm_up = data.draw(st.sampled_from([0, 3])) if ratio else 0
    counts = data.draw(
        st.lists(
            st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any),
            min_size=1,
            max_size=5,
        )
    )
    rng = np.random.default_rng(seed)
    shape = one_matrix().params()[0].shape
    grads = [[rng.standard_normal(shape).astype(np.float32) for _ in c] for c in counts]

    def work(comm):
        net = one_matrix()
        before = net.params()[0].value.copy()
        optimizer = SparseAllReduce(
            SGD(lr=1.0), comm, ratio, threshold, momentum=momentum, warm_up=warm_up
        )
        steps = [
            (c[comm.rank], g[comm.rank] if c[comm.rank] else None)
            for c, g in zip(counts, grads, strict=True)
        ]
        fed(optimizer, net, steps)
        left = optimizer.state_dict().get("w/weight/unsent", np.zeros(before.size))
        return net, (before - net.params()[0].value).ravel(), left

    made = together(work, size)
    expect_same_bits([net for net, *_ in made])
    applied, left = by_hand(grads, counts, size, ratio, threshold, momentum, warm_up)
    np.testing.assert_allclose(made[0][1], applied, rtol=1e-4, atol=1e-5)
    for rank in range(size):
        np.testing.assert_allclose(made[rank][2], left[rank], rtol=1e-4, atol=1e-5)


def test_exactly_k_are_sent_and_small_parameters_are_chosen_from_together():
    heard = []

    def work(comm):
        gather = comm._start_all_gather

        def counted(array, what="an all-gather"):
            heard.append((comm.rank, what, array.dtype, array.nbytes))
            return gather(array, what)

        comm._start_all_gather = counted
        net = dense_net()
        optimizer = SparseAllReduce(SGD(lr=0.1), comm, ratio=0.01)
        net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return optimizer.exchanged

    first, second = together(work)
    sent = [each for each in heard if each[0] == 0 and each[1].startswith("the gradients")]
    # 240 + 40 + 500 + 40 + 160 + 4 elements in one message, and of the 20,000 twice by themselves.
    sizes = sorted(nbytes for *_, nbytes in sent)
    head = lambda params: 4 * (1 + params)  # noqa: E731
    large = head(1) + 8 * 200
    small = head(6) + 8 * math.ceil(0.01 * (240 + 40 + 500 + 40 + 160 + 4))
    assert sizes == sorted([small, large, large])
    # Indices do not ride among floats, which have no odd number above 2^24.
    assert all(dtype == np.uint8 for _, _, dtype, _ in sent)
    assert (first.sent, first.received) == (second.received, second.sent)
    # And what all tell each other before.
    assert 0 <= first.sent - sum(sizes) < 100


def test_ranks_send_as_many_as_they_have():
    def work(comm):
        net = one_matrix()
        optimizer = SparseAllReduce(SGD(lr=1.0), comm, threshold=0.5)
        before = net.params()[0].value.copy()
        grad = np.zeros(before.shape, np.float32)
        if comm.rank == 0:
            grad.flat[[1, 3, 209]] = [2.0, -0.5, 4.0]  # a half of each is what they weigh
        fed(optimizer, net, [(1, grad)])
        return (before - net.params()[0].value).ravel(), optimizer.exchanged

    (moved, first), (same, second) = together(work)
    np.testing.assert_array_equal(moved, same)
    assert np.flatnonzero(abs(moved) > 1e-7).tolist() == [1, 209]
    assert first.sent - second.sent == 2 * 8


def test_without_feedback_nothing_is_kept():
    def work(comm):
        net = one_matrix()
        before = net.params()[0].value.copy()
        optimizer = SparseAllReduce(SGD(lr=1.0), comm, ratio=1 / 210, error_feedback=False)
        grad = np.zeros(before.shape, np.float32)
        grad.flat[:2] = 3.0, 2.0
        fed(optimizer, net, [(1, grad)] * 3)
        assert "w/weight/unsent" not in optimizer.state_dict()
        return (before - net.params()[0].value).ravel()

    moved, _ = together(work)
    np.testing.assert_allclose(moved[:3], [9.0, 0.0, 0.0], atol=1e-5)


@pytest.mark.slow
def test_places_beyond_what_a_float32_counts_are_exact():
    # SINGA's indices rode among floats; no odd number above 2^24 is one.
    last = 4097 * 4099 - 1
    assert int(np.float32(last - 1)) != last - 1

    def work(comm):
        net = one_matrix(4097, 4099)
        value = net.params()[0].value
        before = value.flat[[last - 2, last - 1, last]]
        grad = np.zeros(value.shape, np.float32)
        grad.flat[last - comm.rank] = 2.0
        fed(SparseAllReduce(SGD(lr=1.0), comm, threshold=0.5), net, [(1, grad)])
        return (before - value.flat[[last - 2, last - 1, last]]).tolist()

    for moved in together(work):
        np.testing.assert_allclose(moved, [0.0, 1.0, 1.0], atol=1e-6)


def test_feedback_may_begin_later():
    # SINGA had no list for what was left once it had begun without.
    def work(comm):
        net = one_matrix()
        grad = np.ones(net.params()[0].shape, np.float32)
        first = SparseAllReduce(SGD(lr=1.0, momentum=0.5), comm, 0.1, error_feedback=False)
        fed(first, net, [(1, grad)])
        second = SparseAllReduce(SGD(lr=1.0, momentum=0.5), comm, 0.1)
        second.load_state_dict(first.state_dict())
        fed(second, net, [(1, grad)])
        return second.state_dict()["w/weight/unsent"]

    for left in together(work):
        assert np.count_nonzero(left) == 210 - 21


def test_what_is_not_finite_is_sent_and_does_not_stay():
    def work(comm):
        net = one_matrix()
        grad = np.full(net.params()[0].shape, 0.01, np.float32)
        if comm.rank:
            grad.flat[100] = np.nan
        optimizer = SparseAllReduce(SGD(lr=1.0), comm, ratio=1 / 210)
        fed(optimizer, net, [(1, grad)])
        return net, optimizer.state_dict()["w/weight/unsent"]

    (net, left), (other, others) = together(work)
    expect_same_bits([net, other])
    assert np.flatnonzero(np.isnan(net.params()[0].value.ravel())).tolist() == [100]
    for array in (left, others):
        assert np.isfinite(array).all()


# -- with all else --------------------------------------------------------------------------------


def test_the_norm_that_clips_is_that_of_the_sum_that_is_applied():
    grads = RNG.standard_normal((4, 2, 30, 7)).astype(np.float32)

    def trained(wrap):
        def work(comm):
            net = one_matrix()
            before = net.params()[0].value.copy()
            x = np.eye(30, dtype=np.float32)
            # The gradient of Σ (x w − y)² / 2 over 30 rows: a mean over x w − y.
            moved = []
            optimizer = wrap(comm)
            for k in range(4):
                y = net.params()[0].value.reshape(30, 7) - 30 * grads[k, comm.rank]
                net.step(x, y, optimizer)
                moved.append(before - net.params()[0].value)
                before = net.params()[0].value.copy()
            return moved

        return together(work)[0]

    plain = trained(lambda c: SparseAllReduce(SGD(lr=1.0), c, ratio=0.05))
    clipped = trained(lambda c: SparseAllReduce(ClipByGlobalNorm(SGD(lr=1.0), 0.5), c, ratio=0.05))
    for moved, cut in zip(plain, clipped, strict=True):
        norm = np.linalg.norm(moved)
        assert norm > 0.5
        np.testing.assert_allclose(cut, moved * (0.5 / norm), rtol=2e-3, atol=2e-5)


def test_rows_are_sent_whole_and_only_they_move():
    words = RNG.integers(0, 20, (24, 3))

    def work(comm):
        net = words_net()
        for _ in range(3):
            net.step(words[comm.rank :: 2], Y[comm.rank :: 2], SparseAllReduce(SGD(lr=0.5), comm))
        return net

    nets = together(work)
    expect_same_bits(nets)
    before, after = (values_of(net)["e/weight"] for net in (words_net(), nets[0]))
    moved = (before != after).any(axis=1)
    assert moved.tolist() == [k in words for k in range(50)]


def test_what_is_not_reached_is_kept_for_when_it_is():
    def two_heads():
        net = singanet.FeedForwardNet(seed=2)
        trunk = net.add(Dense("trunk", 5, input_sample_shape=(6,)))
        net.add(Dense("left", 3), trunk)
        net.add(Dense("right", 2), trunk)
        return net

    def work(comm):
        net, optimizer = two_heads(), SparseAllReduce(SGD(lr=0.1, weight_decay=0.1), comm, 0.1)
        optimizer.meet(net)
        before = values_of(net)
        moved = []
        for k in range(3):
            # Nobody reaches "right" at first, then rank 1 alone does.
            head = "right" if k == 1 and comm.rank else "left"
            net.forward(True, X[:2])
            optimizer.begin(2)
            for item in net.backward({head: np.ones((2, 2 if head == "right" else 3), "f")}):
                optimizer.update(*item)
            optimizer.end()
            now = values_of(net)
            moved.append({name for name in now if (now[name] != before[name]).any()})
            before = now
        return net, moved

    (net, moved), (other, _) = together(work)
    expect_same_bits([net, other])
    # The decay moves all elements of what anybody has reached, and nothing else.
    assert [any("right" in name for name in each) for each in moved] == [False, True, False]
    assert all(any("left" in name for name in each) for each in moved)


def test_a_lone_process_trains_densely_with_momentum_where_it_was_asked_for():
    def trained(optimizer):
        net = dense_net()
        for _ in range(4):
            net.step(X, Y, optimizer)
        return values_of(net)

    plain = trained(SGD(lr=0.1, momentum=0.9))
    corrected = trained(SparseAllReduce(SGD(lr=0.1), SingleProcess(), momentum=0.9))
    for name, value in plain.items():
        np.testing.assert_allclose(corrected[name], value, rtol=1e-4, atol=1e-6)
    clipped = trained(ClipByGlobalNorm(SGD(lr=0.1), 0.05))
    same = trained(SparseAllReduce(ClipByGlobalNorm(SGD(lr=0.1), 0.05), SingleProcess()))
    for name, value in clipped.items():
        np.testing.assert_allclose(same[name], value, rtol=1e-4, atol=1e-6)


# -- files ----------------------------------------------------------------------------------------


def state_of(comm, **options):
    net, optimizer = one_matrix(), SparseAllReduce(SGD(lr=0.1, momentum=0.9), comm, **options)
    fed(optimizer, net, [(1, np.ones(net.params()[0].shape, np.float32))])
    return optimizer.state_dict()


def test_the_state_of_another_rank_leaves_out_what_that_had_not_sent():
    first, _ = together(state_of)

    def work(comm):
        optimizer = SparseAllReduce(SGD(lr=0.1, momentum=0.9), comm)
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
        optimizer = SparseAllReduce(SGD(lr=0.1, momentum=0.9), comms[0])
        damaged = {k: v for k, v in first.items() if k != "*/unsent"}
        with pytest.raises(singanet.errors.DataError, match="rank"):
            optimizer.load_state_dict(damaged)
        assert sorted(optimizer.state_dict()) == ["*/unsent"]

    def meets(comm):
        optimizer, net = SparseAllReduce(SGD(lr=0.1, momentum=0.9), comm), one_matrix(4, 4)
        if later:
            optimizer.meet(net)
        if not comm.rank:
            optimizer.load_state_dict(first)
        optimizer.meet(net)

    with pytest.raises((ShapeError, RankError), match="16 unsent elements|failed"):
        together(meets)


# -- settings that are assigned -------------------------------------------------------------------


def test_a_threshold_that_nothing_reaches_is_told():
    """SINGA's fusing size is called threshold, too."""

    def work(comm, told=None):
        net = one_matrix()
        grad = np.full(net.params()[0].shape, 0.01, np.float32)
        optimizer = SparseAllReduce(SGD(lr=1.0), comm, threshold=2097152)
        fed(optimizer, net, [(1, grad)] * 9)
        with pytest.warns(RuntimeWarning, match=r"2097152.*nothing was sent in 10 steps.*unit"):
            fed(optimizer, net, [(1, grad)])
        fed(optimizer, net, [(1, grad)] * 12)

    with communicators(2) as comms, ThreadPoolExecutor() as pool, warnings.catch_warnings():
        # Warnings of all threads are caught: the other one must not warn.
        other = pool.submit(quiet, comms[1])
        work(comms[0])
        other.result()


def quiet(comm):
    net = one_matrix()
    grad = np.full(net.params()[0].shape, 0.0, np.float32)
    fed(SparseAllReduce(SGD(lr=1.0), comm, threshold=2097152), net, [(1, grad)] * 22)


def test_what_passes_sometimes_is_not_told():
    def work(comm):
        net = one_matrix()
        grad = np.full(net.params()[0].shape, 0.1, np.float32)
        fed(SparseAllReduce(SGD(lr=1.0), comm, threshold=0.4), net, [(1, grad)] * 30)

    together(work)  # warnings are errors here


def test_a_threshold_of_nothing_sends_all():
    """SINGA's spars=0.0 with topK=False."""

    def work(comm):
        found = []
        for kind, settings_ in ((AllReduce, {}), (SparseAllReduce, {"threshold": 0.0})):
            net = dense_net()
            optimizer = kind(SGD(lr=0.1, momentum=0.9), comm, **settings_)
            for k in range(4):
                cut = slice(6 * k + 3 * comm.rank, 6 * k + 3 + 3 * comm.rank)
                net.step(X[cut], Y[cut], optimizer)
            found.append(values_of(net))
        return found

    for dense, sparse in together(work):
        for name, value in dense.items():
            np.testing.assert_allclose(sparse[name], value, rtol=1e-5, atol=1e-6)


ASSIGNED = [
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
]


@pytest.mark.parametrize(("kind", "made", "name", "value"), ASSIGNED)
@pytest.mark.parametrize("after", [0, 5])
def test_what_is_assigned_is_heard(kind, made, name, value, after):
    """As with a reducer constructed so, recorded or not."""

    def work(comm):
        found = []
        for assigned in (True, False):
            net = dense_net()
            alone = {**made, name: value}
            if {"ratio", "threshold"} <= alone.keys():
                del alone["ratio" if name == "threshold" else "threshold"]
            optimizer = kind(SGD(lr=0.1), comm, **(made if assigned or after else alone))
            for k in range(after + 5):
                if k == after and assigned:
                    setattr(optimizer, name, value)
                    assert getattr(optimizer, name) == value
                if k == after and not assigned and after:
                    state = optimizer.state_dict()
                    optimizer = kind(SGD(lr=0.1), comm, **alone)
                    optimizer.load_state_dict(state)
                cut = slice(comm.rank, None, 2)
                net.step(X[cut], Y[cut], optimizer)
            found.append(values_of(net))
        return found

    for one, two in together(work):
        expect_same_values([one, two])


def test_a_threshold_replaces_the_warm_up_too():
    """It could not be put around another optimizer, as `fit` with ``clip`` does."""
    made = SparseAllReduce(SGD(lr=0.1), ratio=0.1, warm_up=3)
    made.threshold = 0.05
    other = made._remade(SGD(lr=0.1))
    assert (other.ratio, other.threshold, other.warm_up) == (None, 0.05, 0)


# -- refusals -------------------------------------------------------------------------------------


def test_momentum_of_rows_is_refused():
    with pytest.raises(ArgumentError, match="row-sparse"):
        words_net().step(
            np.zeros((2, 3), int),
            Y[:2],
            SparseAllReduce(SGD(lr=0.1), SingleProcess(), momentum=0.9),
        )
