"""Schedule-Free AdamW in `fit` and in loops: the average is in the net whenever it is looked at."""

import copy
import shutil

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet, Input
from singanet.errors import ArgumentError, CallOrderError, SingaNetError
from singanet.layers import Activation, BatchNormalization, Dense, Embedding, Flatten
from singanet.loss import SquaredError
from singanet.optimizer import (
    Accumulator,
    Adam,
    BlockCoordinate,
    ClipByValue,
    Muon,
    ScheduleFreeAdamW,
)
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.schedules import Chained, Cosine, Plateau, WarmUp
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    PartialUpdate,
    Sharded,
)
from singanet.training.callbacks import EMA, Callback, EarlyStopping, ModelCheckpoint
from tests.kit.ranks import on_stages, together

X = np.random.default_rng(0).normal(size=(24, 4))
Y = X @ np.random.default_rng(1).normal(size=(4, 2))


def rule(**more):
    more = {"lr": WarmUp(0.05, 3), "weight_decay": 0.1, **more}
    return ScheduleFreeAdamW(**more)


def net_of(dtype="float64", made=None, **how):
    layers = [Dense("a", 5, input_shape=(4,)), Activation("tanh"), Dense("b", 2)]
    net = FeedForwardNet(layers, seed=0)
    net.as_type(dtype)
    net.compile(made or rule(), SquaredError(), **how)
    return net


def fit(net, epochs=2, **how):
    how = {"batch_size": 8, "shuffle": True, "verbose": False, **how}
    return net.fit(X, Y, epochs=epochs, **how)


def values(net):
    return {param.name: np.array(param.value) for param in net.params()}


def same(one, other, **near):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], err_msg=name, **(near or {"rtol": 0}))


def training(net):
    """The parameters at y."""
    twin = copy.deepcopy(net)
    twin.compiled.optimizer.resume(twin.params())
    return values(twin)


# --- the numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.05, WarmUp(0.05, 9), Cosine(0.05, 40)])
def test_y_and_x_are_those_of_the_three_sequences(rate):
    net, made = net_of(), rule(lr=rate)
    y = values(net)
    x, z = dict(y), dict(y)
    v = dict.fromkeys(y, 0.0)
    total = most = 0.0
    for t in range(30):
        net.loss.forward(True, net.forward(True, X), Y)
        items = [*net.backward(net.loss.backward())]
        lr = rate(t) if callable(rate) else rate
        most = max(most, lr)
        total += most**2
        c = most**2 / total
        for names, arrays, grads in items:
            for name, g in zip(names, grads, strict=True):
                v[name] = 0.999 * v[name] + 0.001 * g**2
                step = g / (np.sqrt(v[name] / (1 - 0.999 ** (t + 1))) + 1e-8) + 0.1 * y[name]
                z[name] = z[name] - lr * step
                x[name] = (1 - c) * x[name] + c * z[name]
                y[name] = 0.9 * x[name] + 0.1 * z[name]
            made.update(names, arrays, grads)
        same(values(net), y, rtol=1e-11, atol=1e-13)
    made.rest(net.params())
    same(values(net), x, rtol=1e-11, atol=1e-13)
    made.rest(net.params())  # no second time
    same(values(net), x, rtol=1e-11, atol=1e-13)
    made.resume(net.params())
    same(values(net), y, rtol=1e-11, atol=1e-13)


def test_the_authors_package_has_the_same_numbers():
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("schedulefree").AdamWScheduleFree
    net, made = net_of(), rule(lr=WarmUp(0.05, 9))
    start = values(net)
    own = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    peer = theirs(own.values(), lr=0.05, weight_decay=0.1, warmup_steps=10)
    peer.train()
    for _ in range(30):
        hidden = torch.tanh(torch.tensor(X) @ own["a/weight"] + own["a/bias"])
        loss = ((hidden @ own["b/weight"] + own["b/bias"] - torch.tensor(Y)) ** 2).mean() / 2
        peer.zero_grad()
        loss.backward()
        peer.step()
        net.step(X, Y, made)
        same(values(net), {n: p.detach().numpy() for n, p in own.items()}, rtol=1e-12, atol=1e-12)
    peer.eval()
    made.rest(net.params())
    same(values(net), {n: p.detach().numpy() for n, p in own.items()}, rtol=1e-12, atol=1e-12)


def test_a_fit_ends_at_the_average_and_goes_on_from_y():
    whole, pieces, made = net_of(), net_of(), rule()
    fit(whole, 4, shuffle=False)
    for _ in range(4):
        fit(pieces, 1, shuffle=False)
    same(values(pieces), values(whole))
    loop = net_of()
    for _ in range(4):
        for start in range(0, 24, 8):
            loop.step(X[start : start + 8], Y[start : start + 8], made)
    same(training(whole), values(loop), rtol=1e-12, atol=1e-13)
    made.rest(loop.params())
    same(values(whole), values(loop), rtol=1e-12, atol=1e-13)
    assert whole.evaluate(X, Y)[0] == pytest.approx(loop.evaluate(X, Y)[0], rel=1e-12)


# --- fit: validation, callbacks, checkpoints ------------------------------------------------------


class Seen(Callback):
    """The loss over all samples after each epoch, by the parameters that callbacks see."""

    def __init__(self):
        self.losses, self.values = [], []

    def on_epoch_end(self, epoch, logs):
        self.values.append(values(self.session.net))
        self.losses.append(self.session.net.evaluate(X, Y)[0])


def test_validation_and_callbacks_see_the_average(tmp_path):
    seen, early = Seen(), EarlyStopping("val_loss", patience=9)
    made = rule(lr=lambda step: 0.05 if step < 9 else 2.0)
    saving, net = ModelCheckpoint(tmp_path, keep=9), net_of(made=made)
    history = fit(net, 5, validation_data=(X, Y), callbacks=[seen, early, saving])
    np.testing.assert_allclose(history["val_loss"], seen.losses, rtol=1e-12)
    best = int(np.argmin(history["val_loss"]))
    assert early.best_epoch == best < 4
    same(values(net), seen.values[best])
    again = net_of()
    again.load(tmp_path / "best.npz")
    same(values(again), seen.values[best])
    for epoch, found in enumerate(seen.values):
        with np.load(tmp_path / f"epoch-{epoch + 1:04d}.npz") as file:
            same({name: file[f"net/{name}"] for name in found}, found)


def test_the_average_is_in_the_net_after_an_error_too():
    class Failing(Callback):
        def on_batch_end(self, batch, logs):
            if self.session.step == 4:
                raise ValueError("enough")

    net, made = net_of(), rule()
    with pytest.raises(ValueError, match="enough"):
        fit(net, shuffle=False, callbacks=[Failing()])
    loop = net_of()
    for start in (0, 8, 16, 0):
        loop.step(X[start : start + 8], Y[start : start + 8], made)
    made.rest(loop.params())
    same(values(net), values(loop), rtol=1e-12, atol=1e-13)


WAYS = {
    "plain": {},
    "clipped": {"clip": 0.1, "clip_by": "global"},
    "accumulated": {"accumulate": 2},
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_resumed_fit_equals_one_that_saved_at_the_same_points(dtype, how, tmp_path):
    scaled = {"mixed_precision": "float16"} if dtype == "float16" else {}

    def made():
        return net_of("float32" if scaled else dtype, **scaled)

    def saving(folder):
        return {
            **how,
            "callbacks": [ModelCheckpoint(folder, None, keep=9, every_steps=2), EMA(0.9)],
        }

    class Ending(Callback):
        def __init__(self, step):
            self.step = step

        def on_batch_end(self, batch, logs):
            if self.session.step == self.step:
                raise KeyboardInterrupt

    whole = made()
    fit(whole, 3, **saving(tmp_path / "whole"))
    for step in (3, 4, 6):
        part, given = made(), saving(tmp_path / f"{step}")
        given["callbacks"].append(Ending(step))
        with pytest.raises(KeyboardInterrupt):
            fit(part, 3, **given)
        again = made()
        fit(again, 3, resume=tmp_path / f"{step}", **saving(tmp_path / f"{step}"))
        same(values(again), values(whole))
        one, other = (net.compiled.optimizer.state_dict() for net in (again, whole))
        same(one, other)
        assert one["a/weight/rests"] == 1 - 1 / 0.9


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_recorded_steps_are_those_by_the_layers(dtype):
    how = {"mixed_precision": "float16"} if dtype == "float16" else {}
    found = []
    for recorded in (True, False):
        net = net_of("float32" if how else dtype, **how)
        net.programs.enabled = recorded
        history = fit(net, 4, validation_data=(X, Y))
        found.append((values(net), history["val_loss"]))
    same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_masters_move_and_take_what_is_written_at_rest():
    net = net_of("float32", mixed_precision="float16")
    fit(net)
    precision = net.compiled.precision
    state, weight = net.compiled.optimizer.state("a/weight"), net.params()[0].value
    np.testing.assert_array_equal(weight, precision.masters["a/weight"].astype("float16"))
    x = precision.masters["a/weight"].copy()
    difference = state.arrays[0].reshape(x.shape)
    UpdateChain(net.compiled.scaled(net.compiled.optimizer)).optimizer.resume(net.params())
    y = precision.masters["a/weight"]
    np.testing.assert_allclose(y, x + (1 / 0.9 - 1) * difference, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(weight, y.astype("float16"))


def test_a_frozen_layer_keeps_its_average():
    net = net_of()
    fit(net)
    average = values(net)
    net.freeze("b")
    fit(net)
    np.testing.assert_array_equal(values(net)["a/weight"], average["a/weight"])
    assert (values(net)["b/weight"] != average["b/weight"]).all()
    net.unfreeze()
    fit(net, 1)
    assert (values(net)["a/weight"] != average["a/weight"]).all()


def test_files_of_a_model_have_the_average_and_go_on_from_y(tmp_path):
    net, whole = net_of(), net_of()
    fit(net, shuffle=False)
    fit(whole, shuffle=False)
    net.save_model(tmp_path / "net.singanet")
    net.save(tmp_path / "net.npz")
    loaded = singanet.load_model(tmp_path / "net.singanet")
    same(values(loaded), values(whole))
    same(dict(np.load(tmp_path / "net.npz")), values(whole))
    np.testing.assert_array_equal(loaded.predict(X), whole.predict(X))
    for each in (net, loaded, whole):
        fit(each, 2, shuffle=False)
    same(values(loaded), values(whole))
    same(values(net), values(whole))


def test_planning_changes_nothing_at_rest():
    net = net_of()
    fit(net)
    before, state = values(net), net.compiled.optimizer.state_dict()
    net.memory(8, net.compiled.optimizer)
    same(values(net), before)
    same(net.compiled.optimizer.state_dict(), state)


# --- loops of one's own ---------------------------------------------------------------------------


def streamed(net, made):
    net.loss.forward(True, net.forward(True, X), Y)
    for names, arrays, grads in net.backward(net.loss.backward()):
        made.update(names, arrays, grads)


def test_a_streaming_loop_rests_and_resumes():
    net, straight, made, other = net_of(), net_of(), rule(), rule()
    for _ in range(3):
        streamed(net, made)
        streamed(straight, other)
    made.rest(net.params())
    average = values(net)
    with pytest.raises(CallOrderError, match=r"optimizer.resume\(net.params\(\)\)"):
        streamed(net, made)
    same(values(net), average)
    made.resume(net.params())
    same(values(net), values(straight), rtol=1e-14, atol=1e-15)
    streamed(net, made)
    net.step(X, Y, made)
    made.rest(net.params())
    net.step(X, Y, made)
    for _ in range(3):
        streamed(straight, other)
    same(values(net), values(straight), rtol=1e-12, atol=1e-14)


def test_a_recorded_program_refuses_a_net_at_rest():
    layers = [Dense("a", 5, input_shape=(4,)), BatchNormalization("n"), Dense("b", 2)]
    net, made = FeedForwardNet(layers, loss=SquaredError(), seed=0), rule()
    x, y = X.astype("f"), Y.astype("f")
    program = net.record(x, y, made)
    program.run(x, y)
    y_values = values(net)
    made.rest(net.params())
    average = values(net)
    with pytest.raises(CallOrderError, match="since rest was called"):
        program.run(x, y)
    same(values(net), average)
    made.resume(net.params())
    same(values(net), y_values, rtol=1e-5, atol=1e-6)
    program.run(x, y)


def test_by_name_it_has_the_rate_of_keras():
    net = net_of(made="ScheduleFreeAdamW")
    assert net.compiled.optimizer.lr == 0.0025


def test_other_rules_rest_without_an_effect():
    net, adam = net_of(), Adam(0.01)
    net.step(X, Y, adam)
    before = values(net)
    Accumulator(adam, 2).rest(net.params())
    adam.rest(net.params())
    same(values(net), before)


def test_two_nets_of_the_same_names_rest_apart():
    one, two, made = net_of(), net_of(), rule()
    alone = net_of()
    other = rule()
    for _ in range(3):
        one.step(X, Y, made)
        two.step(X[:8], Y[:8], made)
        alone.step(X, Y, other)
        made.rest(one.params())
        other.rest(alone.params())
        same(values(one), values(alone))


def test_looked_up_rows_alone_move():
    layers = [Embedding("e", 6, 3, input_shape=(2,)), Flatten("f"), Dense("d", 2)]
    net, made = FeedForwardNet(layers, loss=SquaredError(), seed=0), rule()
    ids = np.array([[1, 4], [4, 1]])
    start = values(net)["e/weight"]
    for _ in range(3):
        net.step(ids, Y[:2], made)
    made.rest(net.params())
    moved = (values(net)["e/weight"] != start).all(axis=1)
    np.testing.assert_array_equal(moved, [False, True, False, False, True, False])


@pytest.mark.parametrize("several", [False, True])
def test_programs_of_a_graph_go_on_from_y(several):
    found = []
    for rests in (False, True):
        x, y = Input("x", (4,)), Input("y", (2,))
        a, b, made = Dense("a", 5), Dense("b", 2), rule()
        loss = SquaredError()(b(a(x)), y)
        updates = [made.minimize(loss, [b])] if several else [made.minimize(loss)]
        if several:
            updates.append(Adam(0.01).minimize(loss, [a]))
        executor = Executor({"train": [loss, *updates]}, seed=0)
        for _ in range(5):
            executor.run("train", {"x": X.astype("f"), "y": Y.astype("f")})
            if rests:
                made.rest(executor.net.params())
        made.rest(executor.net.params())
        found.append(values(executor.net))
    same(*found, rtol=1e-5, atol=1e-6)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [
    Plateau(0.1), WarmUp(Plateau(0.1), 3), Chained([0.1, Plateau(0.1)], [3]),
    Cosine(0.1, 9, by="epoch"),
])  # fmt: skip
def test_schedules_of_more_than_the_step_are_refused(schedule):
    with pytest.raises(ArgumentError, match="of the step alone"):
        ScheduleFreeAdamW(schedule)
    made = rule()
    made.learning_rate = schedule
    with pytest.raises(ArgumentError, match="of the step alone"):
        made.update(["w"], [np.ones(2)], [np.ones(2)])


@pytest.mark.parametrize("beta_1", [0.0, 1.0, lambda step: 0.9])
def test_beta_1_is_a_number_between_0_and_1(beta_1):
    with pytest.raises(ArgumentError, match=r"beta_1=\).*in \(0, 1\)"):
        ScheduleFreeAdamW(beta_1=beta_1)


REDUCERS = [Sharded, LocalSGD, PartialUpdate, ParameterServer, Hybrid]


@pytest.mark.parametrize("kind", REDUCERS)
def test_ranks_without_the_whole_state_are_refused(kind):
    with pytest.raises(ArgumentError, match=rf"ScheduleFreeAdamW in {kind.__name__}.*AllReduce"):
        kind(ClipByValue(rule(), 0.5))


def test_ranks_that_sum_gradients_rest_alike():
    def work(comm):
        net = net_of(made=AllReduce(rule(), comm))
        history = fit(net, 3, shuffle=False, validation_data=(X, Y))
        return values(net), history["val_loss"]

    (first, losses), (second, _) = together(work)
    same(first, second)
    alone = net_of()
    history = fit(alone, 3, shuffle=False, validation_data=(X, Y))
    same(first, values(alone), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(losses, history["val_loss"], rtol=1e-9)


def test_nets_that_are_not_in_memory_are_refused(tmp_path):
    folder, narrow = net_of("float32", Adam()), net_of("float32")
    away = r"an offloaded net.*net.onload\(\)"
    with pytest.raises(ArgumentError, match=away):
        narrow.offload(tmp_path / "refused")
    fit(narrow, 1)
    folder.offload(tmp_path / "folder")
    narrow.as_type("bfloat16")
    for net, told in ((folder, away), (narrow, "in bfloat16")):
        before = values(net)
        with pytest.raises(SingaNetError, match=f"ScheduleFreeAdamW.*{told}"):
            net.step(X, Y, rule())
        same(values(net), before)


def test_stages_of_a_pipeline_train_and_resume_as_one_process(tmp_path):
    def staged(folder, resume=None, epochs=3):
        def train(net, pipeline):
            made = AllReduce(rule(), pipeline.replicas)
            net.compile(made, SquaredError())
            saving = ModelCheckpoint(folder, None, keep=9, every_steps=2)
            how = {"validation_data": (X, Y), "callbacks": [saving], "resume": resume}
            return fit(net, epochs, **how)["val_loss"], net.evaluate(X, Y)[0]

        return on_stages(train, net_of, ["b"])

    alone = net_of()
    saving = ModelCheckpoint(tmp_path / "alone", None, keep=9, every_steps=2)
    wanted = fit(alone, 3, validation_data=(X, Y), callbacks=[saving])["val_loss"]
    whole = staged(tmp_path / "whole")
    for (losses, last), found in whole:
        same(found, values(alone), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(losses, wanted, rtol=1e-9)
        assert last == pytest.approx(losses[-1], rel=1e-12)
    for name in ("step", "epoch-0001"):
        (tmp_path / name).mkdir()
        staged(tmp_path / "part", epochs=1 if name == "epoch-0001" else 2)
        (tmp_path / "part" / f"{name}.npz").rename(tmp_path / name / f"{name}.npz")
        shutil.rmtree(tmp_path / "part")
        again = staged(tmp_path / name, tmp_path / name)
        for (_, found), (_, expected) in zip(again, whole, strict=True):
            same(found, expected)


@pytest.mark.parametrize("kind", [BlockCoordinate, lambda made: Muon(others=made)])
def test_rules_around_refuse_it(kind):
    with pytest.raises(ArgumentError, match="ScheduleFreeAdamW"):
        kind(rule())
