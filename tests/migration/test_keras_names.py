"""The table "Names in Keras and here" of the guide from Keras, each row run."""

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, layers, loss, metric, optimizer
from singanet import functional as F
from singanet.errors import ArgumentError, DataError
from singanet.layers import Activation, Conv2D, Dense, Flatten, Pad, Softmax
from singanet.loss import MeanSquaredError, SoftmaxCrossEntropy, from_function
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam, ClipNorm, Optimizer
from singanet.training import callbacks
from tests.migration.rows import PAGES

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
kl, ops = keras.layers, keras.ops

X, Y = (np.random.default_rng(0).normal(size=(24, k)).astype(np.float32) for k in (5, 2))
LABELS = np.random.default_rng(1).integers(0, 2, 24)
CASES = {}


def what(start):
    """A check of the row whose first cell begins so."""

    def register(check):
        assert start not in CASES
        CASES[start] = check
        return check

    return register


def close(ours, theirs):
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)


def same_weights(here, there):
    for param, value in zip(here.params(), there.get_weights(), strict=True):
        param.value[...] = value
    return here, there


def both(ours=(), theirs=(), shape=(5,)):
    """Nets of one Dense behind ``ours`` and ``theirs``, with the same weights."""
    here = FeedForwardNet([*ours, Dense(2)])
    here.build(shape)
    return same_weights(here, keras.Sequential([keras.Input(shape), *theirs, kl.Dense(2)]))


def compiled(here, there, rate=0.1, constraint=None, **more):
    """Both with SGD and the squared error, ours with ``constraint`` and theirs with ``more``."""
    here.compile(SGD(rate, constraint=constraint), MeanSquaredError())
    there.compile(keras.optimizers.SGD(rate, **more), "mse")
    return here, there


def trained_alike(here, there, fit=None, **more):
    """Two epochs of each on the same batches."""
    steps = {"batch_size": 8, "epochs": 2, "shuffle": False, **more}
    mine = here.fit(X, Y, **steps, **(fit or {}), verbose=False)
    theirs = there.fit(X, Y, **steps, verbose=0).history
    for param, value in zip(here.params(), there.get_weights(), strict=True):
        close(param.value, value)
    return mine, theirs


def drawn(make, x=X):
    """What the layers or operators of ``make`` yield for ``x``."""
    start = Input(x.shape[1:])
    return FeedForwardNet(inputs=start, outputs=make(start)).forward(False, x)


@what("`Sequential([...])`")
def check_lists():
    here, there = both([Dense(3)], [kl.Dense(3)])
    close(here.forward(False, X), there(X))
    added = FeedForwardNet()
    added.add(Input((5,)))
    added.add(Dense(3))
    added.add(Dense(2))
    assert [p.shape for p in added.params()] == [p.shape for p in here.params()]
    late = FeedForwardNet([Dense(3), Dense(2)])
    late.compile(SGD(0.1), MeanSquaredError())
    late.fit(X, Y, verbose=False)
    assert [p.shape for p in late.params()] == [p.shape for p in here.params()]


@what("a model as a layer")
def check_models_as_layers():
    inner = FeedForwardNet([Dense("d", 3)], name="inner")
    inner.build((5,))
    outer = FeedForwardNet([inner, Dense("top", 2)])
    outer.build((5,))
    assert outer.nested["inner"] is inner
    assert outer["top"].units == 2
    symbol = Input((5,))
    assert inner(symbol).shape == (3,)


@what('`model.save("x.keras")`')
def check_whole_models(folder):
    here, _ = both()
    here.save_model(str(folder / "x.singanet"))
    again = singanet.load_model(str(folder / "x.singanet"))
    close(again.forward(False, X), here.forward(False, X))


@what("`Input((28, 28, 1))`")
def check_inputs():
    symbol = Input((1, 28, 28))
    net = FeedForwardNet(inputs=symbol, outputs=Dense(10)(Flatten()(symbol)))
    there = keras.Input((28, 28, 1))
    model = keras.Model(there, kl.Dense(10)(kl.Flatten()(there)))
    assert net.params()[0].shape == tuple(model.weights[0].shape)


@what("names made up")
def check_names():
    keras.utils.clear_session()
    here, there = both([Dense(3), Activation()], [kl.Dense(3), kl.Activation("relu")])
    assert [n.name for n in here.layers if n.name != "input"] == [n.name for n in there.layers]


@what("images N H W C")
def check_images():
    x, theirs = (
        np.random.default_rng(0).normal(size=(2, 6, 5, 3)).astype(np.float32),
        kl.Conv2D(4, 3),
    )
    there, (kernel, bias) = theirs(x).detach().numpy(), theirs.get_weights()
    start, ours = Input((3, 6, 5)), Conv2D("c", 4, 3, padding="valid")
    net = FeedForwardNet(inputs=start, outputs=ours(start))
    ours.params["weight"].value[...] = kernel.transpose(3, 2, 0, 1).reshape(4, -1)
    ours.params["bias"].value[...] = bias
    close(net.forward(False, x.transpose(0, 3, 1, 2)), there.transpose(0, 3, 1, 2))


@what('`Dense(10, activation="relu")`')
def check_activations():
    here, there = both([Dense(3, activation="relu")], [kl.Dense(3, activation="relu")])
    close(here.forward(False, X), there(X))
    assert any(isinstance(layer, Activation) for layer in here.layers)


@what('`padding="same"` with strides')
def check_strides():
    x = np.random.default_rng(0).normal(size=(2, 6, 6, 1)).astype(np.float32)
    there = kl.MaxPooling2D(3, strides=2, padding="same")(x)
    ours = [Pad("pad", ((0, 1), (0, 1)), -np.inf), layers.MaxPooling2D("p", 3, 2, padding="valid")]
    found = drawn(lambda s: ours[1](ours[0](s)), x.transpose(0, 3, 1, 2))
    close(found, there.detach().numpy().transpose(0, 3, 1, 2))


@what('`kernel_initializer="he_normal"`')
def check_initial_weights():
    theirs = kl.Dense(400, kernel_initializer="he_normal")
    theirs.build((None, 300))
    ours = Dense(400, kernel_initializer="he_truncated", input_shape=(300,))
    there, here = theirs.get_weights()[0], FeedForwardNet([ours], seed=0).params()[0].value
    np.testing.assert_allclose([here.std(), here.max()], [there.std(), there.max()], 0.02)


@what("`kernel_regularizer=L2(1e-4)`")
def check_penalties():
    theirs = kl.Dense(2, kernel_regularizer=keras.regularizers.L2(0.05))
    here = FeedForwardNet([Dense(2, kernel_regularizer=0.1, input_shape=(5,))])
    there = keras.Sequential([keras.Input((5,)), theirs])
    trained_alike(*compiled(*same_weights(here, there)))


@what("`layer.trainable = False`")
def check_frozen():
    norm = layers.BatchNormalization(momentum=0.01, epsilon=1e-3)
    here, there = both([Dense(3), norm], [kl.Dense(3), kl.BatchNormalization()])
    for ours, theirs in ((here.layers[-2], there.layers[1]), (here.layers[-3], there.layers[0])):
        ours.trainable = theirs.trainable = False
    trained_alike(*compiled(here, there))
    net = FeedForwardNet([Dense("a", 3, input_shape=(5,)), Dense("b", 3), Dense("c", 2)])
    net.freeze("c")
    net.compile(SGD(0.1), MeanSquaredError())
    before = [p.value.copy() for p in net.params()]
    net.fit(X, Y, verbose=False)
    still = [(p.value == b).all() for p, b in zip(net.params(), before, strict=True)]
    assert still == [True] * 4 + [False] * 2


@what("`compile(loss=fn)`")
def check_own_loss():
    here, there = both([Dense(3)], [kl.Dense(3)])
    here.compile(
        SGD(0.1), from_function(lambda x, y: F.mean(F.square(x - y) * F.sigmoid(x), axis=-1))
    )
    there.compile(
        keras.optimizers.SGD(0.1),
        lambda y, x: ops.mean(ops.square(x - y) * ops.sigmoid(x), axis=-1),
    )
    trained_alike(here, there)


@what("`a + b`, `a * 2`")
def check_operators():
    close(drawn(lambda a: a * 2 + a), ops.add(X * 2, X))
    close(drawn(lambda a: (a * 2)[:, 0]), X[:, 0] * 2)
    close(drawn(lambda a: F.mean(a, axis=1)), ops.mean(X, axis=1))
    close(drawn(lambda a: F.matmul(a, X.T)), ops.matmul(X, X.T))
    close(drawn(lambda a: F.where(a > 0, a, a * 2)), ops.where(X > 0, X, X * 2))
    close(drawn(lambda a: F.take(a, [2, 0], axis=1)), ops.take(X, [2, 0], axis=1))


@what("`ops.cast(a,")
def check_choices():
    close(drawn(lambda a: a.astype("int32")), ops.cast(X, "int32"))
    index = np.argsort(X, 1)
    i = layers.TopIndices("i", 5, largest=False)
    close(drawn(lambda a: layers.Gather("g", 1)(a, i(a))), ops.take_along_axis(X, index, 1))


@what("`v, i = ops.top_k(a, 3)`")
def check_largest():
    values, indices = ops.top_k(X, 3)
    i = layers.TopIndices("i", 3)
    close(drawn(i), indices)
    close(drawn(lambda a: layers.Gather("g", -1)(a, i(a))), values)
    close(drawn(layers.TopIndices("j", 1, 1)), ops.argmax(X, 1, keepdims=True))


@what("`layers.LayerNormalization`")
def check_second_names():
    second = {
        "AveragePooling": layers.AvgPooling2D,
        "Concatenate": layers.Concat,
        "GlobalAveragePooling": layers.GlobalAvgPooling2D,
        "LayerNormalization": layers.LayerNorm,
    }
    for name, ours in second.items():
        theirs = [name] if hasattr(kl, name) else [f"{name}{axes}D" for axes in (1, 2, 3)]
        for full in theirs:
            assert hasattr(kl, full)
            number = full.removeprefix(name)[:1]
            kind = getattr(layers, ours.__name__.replace("2", number) if number else ours.__name__)
            assert getattr(layers, full) is kind
    image = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
    pooled = layers.GlobalAveragePooling1D(data_format="channels_last")
    close(drawn(pooled, image), kl.GlobalAveragePooling1D()(image))
    with pytest.raises(TypeError, match=r"write Concat\(axis"):
        layers.Concatenate()


@what("`layers.ReLU()`")
def check_relus():
    close(drawn(Activation("relu")), kl.ReLU()(X))
    slope = Activation("leaky_relu", alpha=0.2)
    close(drawn(slope), kl.LeakyReLU(negative_slope=0.2)(X))
    close(drawn(Softmax(axis=-1)), kl.Softmax()(X))


@what("`layers.add([a, b])`")
def check_merged():
    close(drawn(lambda a: layers.Add()(a, -2 * a)), kl.add([X, -2 * X]))
    close(drawn(lambda a: layers.Concatenate(axis=-1)(a, a)), kl.concatenate([X, X]))
    close(drawn(lambda a: 2 * a), kl.Lambda(lambda x: 2 * x)(X))


@what("`MultiHeadAttention(2, 4)(query=a")
def check_calls_of_attention():
    a, b, mask = Input("a", (3, 4)), Input("b", (5, 4)), Input("mask", (3, 5))
    crossed = layers.MultiHeadAttention("m", 2, 4, mask="boolean")(a, b, mask)
    causal = layers.MultiHeadAttention("c", 2, 4, causal=True)(a)
    x, y = kl.Input((3, 4)), kl.Input((5, 4))
    z = kl.Input((3, 5), dtype="bool")
    one, two = kl.MultiHeadAttention(2, 4), kl.MultiHeadAttention(2, 4)
    there = keras.Model([x, y, z], [one(x, y, attention_mask=z), two(x, x, use_causal_mask=True)])
    here = FeedForwardNet(inputs=[a, b, mask], outputs=[crossed, causal], seed=0)
    there.save_weights("attention.weights.h5")
    assert here.load("attention.weights.h5").complete
    rng = np.random.default_rng(0)
    feed = [rng.normal(size=(2, n, 4)).astype(np.float32) for n in (3, 5)]
    feed.append(rng.random((2, 3, 5)) < 0.7)
    for ours, theirs in zip(here.predict(feed).values(), there(feed), strict=True):
        close(ours, theirs)
    for words in ({"query": a}, {"attention_mask": mask}, {"use_causal_mask": True}):
        with pytest.raises(ArgumentError, match=f"{next(iter(words))}=; pass"):
            layers.MultiHeadAttention(2, 4)(a, **words)


@what("a learned position added")
def check_positions():
    x = np.zeros((2, 3, 4), np.float32)
    net = FeedForwardNet([layers.PositionEmbedding(input_shape=(3, 4))], seed=0)
    table = kl.Embedding(3, 4)
    table.build()
    table.set_weights(net.param_values())
    close(net.predict(x)[0], table(ops.arange(3)))


@what("`ops.one_hot(i, 5)`")
def check_functions_in_other_words():
    def one_hot(i):
        return F.equal(F.expand_dims(i, -1), np.arange(5))

    ids = Input("ids", (), dtype="int64")
    net = FeedForwardNet(inputs=ids, outputs=one_hot(ids))
    close(net.predict(LABELS), ops.one_hot(LABELS, 5))
    close(drawn(lambda a: F.sqrt(F.sum(F.square(a), 1))), ops.norm(X, axis=1))
    close(drawn(lambda a: F.sqrt(F.var(a, 1))), ops.std(X, 1))
    close(drawn(layers.TopIndices("i", 1, 1))[:, 0], ops.argmax(X, 1))


@what("`ops.sin(a)`")
def check_functions_that_are_layers():
    close(drawn(layers.Operation(mode="sin")), ops.sin(X))
    given = ops.convert_to_tensor(X)
    close(drawn(Activation("gelu")), ops.gelu(given, approximate=False))
    close(drawn(layers.StopGradient()), ops.stop_gradient(given))
    close(drawn(lambda a: a * np.ones(5)), X * np.asarray(ops.ones(5)))
    for name, said in {"sin": "Operation", "gelu": "Activation", "stop_gradient": "Stop"}.items():
        with pytest.raises(AttributeError, match=f"write singanet.layers.{said}"):
            getattr(F, name)


ROOMS = {
    layers: keras.layers,
    loss: keras.losses,
    metric: keras.metrics,
    optimizer: keras.optimizers,
    optimizer.schedules: keras.optimizers.schedules,
    callbacks: keras.callbacks,
    singanet.initializer: keras.initializers,
}
OLDER = ("Convolution", "SeparableConvolution", "Cropping")  # the nearest name is right


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_each_class_of_keras_is_here_or_its_error_tells_what_is(room):
    for name, kind in vars(ROOMS[room]).items():
        if not isinstance(kind, type) or name[0].islower() or name.startswith(OLDER):
            continue
        if hasattr(room, name) or name.endswith("Initializer"):
            continue
        with pytest.raises(AttributeError) as caught:
            getattr(room, name)
        advice = str(caught.value).rpartition("; ")[2]
        assert "did you mean" not in advice, (name, advice)
        assert "see its __all__" not in advice, name


@what('`"log_softmax"`')
def check_functions():
    x = X[:, :4]
    close(drawn(layers.LogSoftmax("log", axis=-1), x), keras.activations.log_softmax(x))
    close(drawn(layers.GLU("gate"), x), keras.activations.glu(ops.convert_to_tensor(x)))
    tanh = keras.activations.gelu(ops.convert_to_tensor(x), approximate=True)
    close(drawn(Activation("a", "gelu_tanh"), x), tanh)


@what('`loss="sparse_categorical_crossentropy"`')
def check_losses_by_name():
    here, there = both([], [])
    here.add(Softmax("softmax"))
    there.add(kl.Softmax())
    fit = {"batch_size": 24, "epochs": 2, "shuffle": False, "verbose": 0}
    for net, metrics in ((here, [Accuracy()]), (there, ["accuracy"])):
        net.compile("adam", "sparse_categorical_crossentropy", metrics=metrics)
        net.fit(X, LABELS, **fit)
    close(here.predict(X), there.predict(X, verbose=0))


@what("`fit(sample_weight=)` of shape")
def check_sample_weights():
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=(12, 4, n)).astype(np.float32) for n in (5, 2))
    weight = draw.uniform(size=(12, 4)).astype(np.float32)
    here, there = both(shape=(4, 5))
    here.compile(SGD(0.1), MeanSquaredError(), weighted_metrics=["mae"])
    there.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "sample_weight": weight, "verbose": 0}
    here.fit(x, y, **fit)
    there.fit(x, y, **fit)
    close(here.params()[0].value, there.get_weights()[0])
    found = there.evaluate(x, y, sample_weight=weight, return_dict=True, verbose=0)
    logs = here.evaluate(x, y, sample_weight=weight).logs
    close(logs.pop("loss"), found["loss"])
    close([*logs.values()], [found["mae"]])


@what("`clipvalue`, `global_clipnorm`")
def check_clips():
    for name, how in (
        ("clipvalue", {"clip": 0.1, "clip_by": "value"}),
        ("global_clipnorm", {"clip": 0.1, "clip_by": "global"}),
        ("gradient_accumulation_steps", {"accumulate": 3}),
    ):
        trained_alike(*compiled(*both(), 0.5, **{name: 0.1 if "clip" in how else 3}), how)


@what("`clipnorm`, of each parameter")
def check_clipnorm():
    trained_alike(*compiled(*both(), 0.5, ClipNorm(0.1), clipnorm=0.1))


@what("`keras.mixed_precision.")
def check_mixed_precision():
    there = keras.Sequential([keras.Input((5,)), kl.Dense(2, dtype="mixed_float16")])
    here, _ = same_weights(both()[0], there)
    here.compile(SGD(0.1), MeanSquaredError(), mixed_precision="float16")
    there.compile(keras.optimizers.SGD(0.1), "mse")
    # So small that no loss scale lets a gradient overflow.
    for net in (here, there):
        net.fit(X / 9, Y / 9, batch_size=8, epochs=2, shuffle=False, verbose=0)
    ours, theirs = here.params()[0].value, there.get_weights()[0]
    np.testing.assert_allclose(ours, theirs, atol=5e-3)
    assert (ours.dtype, theirs.dtype) == (np.float16, np.float32)


@what("`optimizer.get_config()`")
def check_rules_as_data():
    rule, own = Adam(singanet.optimizer.schedules.Cosine(0.1, 10)), keras.optimizers
    again = Optimizer.from_config(rule.to_config())
    there = own.Adam(own.schedules.CosineDecay(0.1, 10))
    assert again.to_config() == rule.to_config()
    close(again.lr(0), own.Adam.from_config(there.get_config()).learning_rate)


@what("`model.fit(..., validation_split")
def check_fits():
    seen = [], []

    class Ours(callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            seen[0].append(epoch)

    theirs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen[1].append(epoch))
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "validation_split": 0.25, "verbose": 0}
    here, there = compiled(*both())
    mine = here.fit(X, Y, **fit, callbacks=[Ours()])
    wanted = there.fit(X, Y, **fit, callbacks=[theirs]).history
    for key in ("loss", "val_loss"):
        close(mine[key], wanted[key])
    assert seen[0] == seen[1] == [0, 1]
    assert mine["lr"] == [0.1, 0.1]


@what('`ModelCheckpoint("best.keras"')
def check_best(folder):
    here, _ = both()
    here.compile(SGD(0.1), MeanSquaredError())
    here.fit(X, Y, callbacks=[callbacks.ModelCheckpoint(str(folder))], verbose=False)
    assert (folder / "best.npz").exists()


@what('`monitor="val_kid"`')
def check_a_measure_of_a_callback(folder):
    class Kid(callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["val_kid"] = 3.0 - epoch

    here, _ = compiled(*both())
    best = callbacks.ModelCheckpoint(folder, monitor="val_kid", mode="min")
    assert here.fit(X, Y, epochs=2, callbacks=[Kid(), best], verbose=False)["val_kid"] == [3, 2]
    assert best.monitor.best == 2


@what("`tf.data.Dataset`")
def check_batches():
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, k):
            return X[8 * k : 8 * k + 8], Y[8 * k : 8 * k + 8]

    def batches(epoch):
        return (Data()[k] for k in range(3))

    here, there = compiled(*both())
    ours = here.fit(batches, epochs=2, validation_data=batches, verbose=False)
    fit = {"epochs": 2, "validation_data": Data(), "shuffle": False, "verbose": 0}
    close(ours["val_loss"], there.fit(Data(), **fit).history["val_loss"])
    with pytest.raises(DataError, match="pass a function of the epoch"):
        here.fit(batches(0), epochs=2, verbose=False)


@what("`BackupAndRestore`")
def check_resumed(folder):
    whole, half = (both()[0] for _ in range(2))
    for a, b in zip(whole.params(), half.params(), strict=True):
        b.value[...] = a.value
    fit = {"shuffle": False, "verbose": False}
    for net, epochs in ((whole, 4), (half, 2)):
        net.compile(Adam(0.1), MeanSquaredError())
        keep = callbacks.ModelCheckpoint(str(folder / str(epochs)))
        net.fit(X, Y, epochs=epochs, callbacks=[keep], **fit)
    half.fit(X, Y, epochs=4, resume=str(folder / "2"), callbacks=[keep], **fit)
    for a, b in zip(whole.params(), half.params(), strict=True):
        assert (a.value == b.value).all()


@what("`model.evaluate(x, y, return_dict=True)`")
def check_evaluated():
    theirs = kl.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5))
    here = FeedForwardNet([Dense(2, kernel_regularizer=1.0, input_shape=(5,))])
    there = keras.Sequential([keras.Input((5,)), theirs])
    here, there = compiled(*same_weights(here, there))
    found = there.evaluate(X, Y, return_dict=True, verbose=0)["loss"]
    penalty = 0.5 * (there.get_weights()[0] ** 2).sum()
    close(here.evaluate(X, Y).logs["loss"] + penalty, found)


@what("`model.summary()`")
def check_pictures(folder):
    here, there = both()
    assert f"{there.count_params()} parameters" in str(here.summary())
    here.plot(str(folder / "net.svg"))
    assert (folder / "net.svg").exists()


@what('`model.save_weights("w.weights.h5")`')
def check_weight_files(folder):
    here, there = both([Dense(3)], [kl.Dense(3)])
    for param in here.params():
        param.value += 1.0
    here.save(str(folder / "w.weights.h5"))
    there.load_weights(folder / "w.weights.h5")
    close(here.forward(False, X), there(X))


@what("`model.get_config()`")
def check_nets_as_data():
    here, _ = both([Dense(3, activation="relu")], [kl.Dense(3)])
    again = FeedForwardNet.from_config(here.to_config())
    assert again.to_config() == here.to_config()


@what("`keras.utils.set_random_seed(0)`")
def check_seeds():
    made = []
    for _ in range(2):
        singanet.set_seed(0)
        made.append(FeedForwardNet([Dense(2, input_shape=(5,))]))
    made += [FeedForwardNet([Dense(2, input_shape=(5,))], seed=3) for _ in range(2)]
    first, second, *others = (net.params()[0].value for net in made)
    assert (first == second).all()
    assert (others[0] == others[1]).all()


@what("`model(x, training=True)`")
def check_training_forward():
    here, there = both([layers.BatchNormalization(epsilon=1e-3)], [kl.BatchNormalization()])
    close(here.forward(True, X), there(X, training=True))


@what("`train_step` overridden: several losses")
def check_programs():
    """One loss for two optimizers, as the section on a `train_step` has it."""
    x, y = Input((5,)), Input("y", (2,))
    wide, deep = Dense("wide", 2), Dense("deep", 2)
    loss = MeanSquaredError()(wide(x) + deep(x), y)
    steps = [SGD(0.1).minimize(loss, wide), Adam(0.1).minimize(loss, deep)]
    executor = singanet.Executor({"step": [loss, *steps]}, seed=0)
    theirs = [kl.Dense(2), kl.Dense(2)]
    for layer in theirs:
        layer.build((None, 5))
    params = {p.name: p for p in executor.net.params()}
    for layer, name in zip(theirs, ("wide", "deep"), strict=True):
        params[f"{name}/weight"].value[...] = layer.get_weights()[0]
    rules = [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)]
    for _ in range(3):
        executor.run("step", {x: X, y: Y})
        gap = keras.losses.MeanSquaredError()(Y, theirs[0](X) + theirs[1](X))
        for layer in theirs:
            layer.zero_grad()
        gap.backward()
        for rule, layer in zip(rules, theirs, strict=True):
            rule.apply([v.value.grad for v in layer.variables], layer.variables)
    close(params["wide/weight"].value, theirs[0].get_weights()[0])
    close(params["deep/weight"].value, theirs[1].get_weights()[0])


@what("`train_step` overridden: gradients")
def check_gradients_looked_at():
    here, _ = both()
    here.compile(SGD(0.1), MeanSquaredError())
    seen = []

    class Look(callbacks.Callback):
        def on_layer_gradients(self, names, values, grads):
            seen.extend(names)

    here.fit(X, Y, batch_size=24, callbacks=[Look()], verbose=False)
    loop = []
    here.loss.forward(True, here.forward(True, X), Y)
    for names, _, _ in here.backward(here.loss.backward()):
        loop += names
    assert seen == loop == here.param_names()


@what("`test_step`, `predict_step`")
def check_programs_without_an_update():
    x, y = Input((5,)), Input("y", (), dtype="int64")
    scores = Dense("d", 2)(x)
    loss = SoftmaxCrossEntropy()(scores, y)
    executor = singanet.Executor({"test_step": [loss], "predict_step": [scores]}, seed=0)
    before = [p.value.copy() for p in executor.net.params()]
    executor.run("test_step", {x: X, y: LABELS})
    assert np.shape(executor.run("predict_step", {x: X})[0]) == (24, 2)
    assert all((p.value == b).all() for p, b in zip(executor.net.params(), before, strict=True))


TABLE = (PAGES / "keras.md").read_text("utf-8").partition("\n## Names in Keras and here\n")[2]
ROWS = [line for line in TABLE.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("line", ROWS, ids=lambda line: line[2:40])
def test_row(line, tmp_path):
    checks = [check for start, check in CASES.items() if line.startswith(f"| {start}")]
    assert len(checks) == 1, f"write a case for {line}"
    check = checks[0]
    keras.utils.set_random_seed(0)
    singanet.set_seed(0)
    check(*[tmp_path] * check.__code__.co_argcount)


def test_each_case_has_a_row():
    assert len(ROWS) == len(CASES)
