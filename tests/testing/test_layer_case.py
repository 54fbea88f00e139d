"""LayerCase must fail on faulty layers: each fault is caught by the check named for it."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.layers import BatchNormalization, Dense, Dropout, Layer, Traits
from singanet.testing import GradientError, LayerCase


class Sound(Layer):
    """y = 2 x, without fault."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(shape=x.shape)
        return ctx.ops.multiply(x, 2.0)

    def backward(self, ctx, dy):
        return ctx.ops.multiply(dy, 2.0), {}


class Squares(Sound):
    """y = x², with x left on the layer."""

    def forward(self, ctx, x):
        self.x = x
        return x * x

    def backward(self, ctx, dy):
        return 2.0 * self.x * dy, {}


class SquaresByADict(Squares):
    def forward(self, ctx, x):
        self.kept = {"x": x}
        return x * x

    def backward(self, ctx, dy):
        return 2.0 * self.kept["x"] * dy, {}


class KeepsItsMask(Dropout):
    """A fault of training only, since evaluation draws no mask."""

    def forward(self, ctx, x):
        y = super().forward(ctx, x)
        self.last = ctx.saved
        return y

    def backward(self, ctx, dy):
        ctx.saved = self.last
        return super().backward(ctx, dy)


def layer(base=Sound, **members):
    """A layer class with other methods or attributes."""
    return type("Faulty", (base,), members)


def forward(function, base=Sound, **members):
    """A layer whose forward is ``function(x)``."""
    return layer(base, forward=lambda self, ctx, x: function(x), **members)


def backward(function, base=Sound):
    """A layer whose backward returns ``function(dx, grads)`` of the sound gradients."""

    def faulty(self, ctx, dy):
        return function(*base.backward(self, ctx, dy))

    return layer(base, backward=faulty)


def after(function, base=BatchNormalization, **members):
    """A layer whose forward calls ``function(self, ctx, x)`` at its end."""

    def faulty(self, ctx, x):
        y = base.forward(self, ctx, x)
        function(self, ctx, x)
        return y

    return layer(base, forward=faulty, **members)


def last_alone(x):
    y = x * 2.0
    y[-1:] = x[-1:]
    return y


def in_place(x):
    x *= 2.0
    return x


def saves_in_evaluation(self, ctx, x):
    ctx.saved["x"] = x
    return 2.0 * x


def counts_calls(self, ctx, x):
    self.calls += 1
    return x * float(self.calls)


def counts_walks(self, ctx, dy):
    self.calls += 1
    dx, grads = Dense.backward(self, ctx, dy)
    return dx, {**grads, "bias": grads["bias"] * float(self.calls)}


def moves_with_nothing(self, ctx, x):
    if ctx.train and not len(x):
        ctx.update_state("mean", 0.5 * ctx.params["mean"])


def moves_in_evaluation(self, ctx, x):
    ctx.params["mean"] *= 0.5


def replaces_its_state(self, ctx, x):
    self.params["mean"].value = self.params["mean"].value.copy()


def reads_its_state(self, ctx, dy):
    dx, grads = BatchNormalization.backward(self, ctx, dy)
    return dx * self.params["mean"].value.sum(), grads


def another_bias_alone(dx, grads):
    return dx, {**grads, "bias": grads["bias"] * (1.001 if dx is None else 1)}


def changes_its_specs(self, in_shapes):
    if self.W_specs is not None:
        self.W_specs["name"] = f"{self.name}/weight"
    return Dense.setup(self, in_shapes)


def forgets_its_specs(self, in_shapes):
    self.W_specs = self.b_specs = None
    return Dense.setup(self, in_shapes)


def needs_contiguous_gradients(self, ctx, dy):
    return dy * (2.0 if dy.flags.c_contiguous else 3.0), {}


class PicksOne(Layer):
    """The element of each sample (n,) that the second input selects."""

    traits = Traits(input_kinds=("floats", "integers"))

    def setup(self, in_shapes):
        return ()

    def forward(self, ctx, x):
        values, index = x
        assert index.dtype.kind == "i"
        ctx.save(values=values, index=index)
        return values[np.arange(len(values)), index]

    def backward(self, ctx, dy):
        dx = np.zeros_like(ctx.saved["values"])
        dx[np.arange(len(dx)), ctx.saved["index"]] = dy
        return [dx, None], {}


class IsPositive(Layer):
    """Whether x > 0."""

    traits = Traits(gives_integers=True, stops_gradient=True)

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x > 0

    def backward(self, ctx, dy):
        return None, {}


class DoublesCase(LayerCase):
    layer = Sound
    arguments = ()

    def make(self):
        return self.layer("faulty", *self.arguments)

    def expected(self, params, x):
        return x + x


class SquaresCase(DoublesCase):
    def expected(self, params, x):
        return x**2


class PicksCase(DoublesCase):
    in_shapes = [(4,), ()]

    def draw(self, rng, batch):
        return [rng.standard_normal((batch, 4)), rng.integers(0, 4, batch)]

    def expected(self, params, x):
        return (x[0] * (x[1][:, None] == np.arange(4))).sum(axis=1)


class PositiveCase(DoublesCase):
    def expected(self, params, x):
        return np.sign(x) == 1


class DropCase(DoublesCase):
    def expected(self, params, x):
        return x


class DenseCase(DoublesCase):
    arguments = (3,)

    def expected(self, params, x):
        return x @ params["weight"] + params["bias"]


class NormCase(DoublesCase):
    def expected(self, params, x):
        scale = params["gamma"] / np.sqrt(params["var"] + 1e-5)
        return (x - params["mean"]) * scale + params["beta"]


CHECKS = [name for name in vars(LayerCase) if name.startswith("check_")]
FAULTS = [
    ("forward_equals_the_formula", DoublesCase, forward(lambda x: x * 2.000001)),
    ("forward_equals_the_formula", DoublesCase, forward(last_alone)),
    ("forward_equals_the_formula", DoublesCase, forward(lambda x: np.concatenate([2 * x, x], 1))),
    ("output_has_the_shape_that_setup_promised", DoublesCase,
     forward(lambda x: np.concatenate([2 * x, x], 1))),
    ("output_has_the_shape_that_setup_promised", DoublesCase,
     layer(setup=lambda self, in_shapes: (*in_shapes, 1))),
    ("gradients_equal_numerical_ones", DoublesCase, backward(lambda dx, g: (dx * 1.000005, g))),
    ("gradients_equal_numerical_ones", DoublesCase, backward(lambda dx, g: (None, g))),
    ("gradients_equal_numerical_ones", DenseCase,
     backward(lambda dx, g: (dx, {"weight": g["weight"]}), Dense)),
    ("gradients_equal_numerical_ones", DenseCase,
     backward(lambda dx, g: (dx, {**g, "weight": g["weight"].T}), Dense)),
    ("keeps_the_float_type", DoublesCase, forward(lambda x: x * np.float64(2.0))),
    ("keeps_the_float_type", DoublesCase,
     layer(backward=lambda self, ctx, dy: (dy * np.full(dy.shape, 2.0), {}))),
    ("keeps_the_float_type", DoublesCase, forward(lambda x: (x * 2.0).astype(np.float32))),
    ("keeps_the_float_type", PositiveCase, forward(lambda x: (x > 0).astype(x.dtype), IsPositive)),
    ("takes_an_empty_batch", DoublesCase, forward(lambda x: (2.0 / len(x)) * x * len(x))),
    ("takes_an_empty_batch", DoublesCase,
     backward(lambda dx, g: (dx if len(dx) else dx[..., None], g))),
    ("takes_an_empty_batch", NormCase, after(moves_with_nothing)),
    ("a_sample_alone_equals_itself_in_a_batch", DoublesCase,
     forward(lambda x: 2.0 * (x + x.mean(axis=0)))),
    ("memory_layout_does_not_matter", DoublesCase,
     forward(lambda x: 2.0 * x.ravel(order="K").reshape(x.shape))),
    ("memory_layout_does_not_matter", DoublesCase, layer(backward=needs_contiguous_gradients)),
    ("changes_neither_input_nor_gradient", DoublesCase, forward(in_place)),
    ("changes_neither_input_nor_gradient", DoublesCase,
     layer(backward=lambda self, ctx, dy: (in_place(dy), {}))),
    *((check, case, made) for check in ("several_forwards_may_be_in_flight",
                                        "holds_no_array_between_calls")
      for case, made in ((SquaresCase, Squares), (SquaresCase, SquaresByADict),
                         (DropCase, KeepsItsMask))),
    ("parameter_gradients_do_not_need_the_input_gradient", DenseCase,
     backward(lambda dx, g: (dx, {} if dx is None else g), Dense)),
    ("parameter_gradients_do_not_need_the_input_gradient", DenseCase,
     backward(another_bias_alone, Dense)),
    ("input_gradients_do_not_need_those_of_parameters", DenseCase,
     backward(lambda dx, g: (dx if g else 2 * dx, g), Dense)),
    ("evaluation_keeps_nothing", DoublesCase, layer(forward=saves_in_evaluation)),
    ("evaluation_keeps_nothing", NormCase, after(moves_in_evaluation)),
    # Both promise to be pure: each call counts, or a sum that no recording sees is a constant.
    ("a_recorded_program_equals_the_layer", DoublesCase,
     layer(forward=counts_calls, pure=True, calls=0)),
    ("a_recorded_program_equals_the_layer", DoublesCase,
     forward(lambda x: x * float(np.asarray(x).sum()), pure=True)),
    ("a_recorded_step_equals_the_layers", DoublesCase,
     layer(forward=counts_calls, pure=True, calls=0)),
    ("a_recorded_step_equals_the_layers", DenseCase,
     layer(Dense, backward=counts_walks, pure=True, calls=0)),
    ("training_updates_running_state_in_place", NormCase, after(replaces_its_state)),
    ("training_does_not_change_an_evaluation_in_flight", NormCase,
     layer(BatchNormalization, backward=reads_its_state)),
    ("spec_dicts_are_not_changed", DenseCase, layer(Dense, setup=changes_its_specs)),
    ("spec_dicts_are_not_changed", DenseCase, layer(Dense, setup=forgets_its_specs)),
]  # fmt: skip


def run_check(case, layer, name):
    getattr(type(case.__name__, (case,), {"layer": layer})(), name)(np)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize(
    ("case", "layer"),
    [(DoublesCase, Sound), (DenseCase, Dense), (DropCase, Dropout), (NormCase, BatchNormalization),
     (PicksCase, PicksOne), (PositiveCase, IsPositive)],
)  # fmt: skip
def test_a_sound_layer_passes(case, layer, name):
    run_check(case, layer, name)


@pytest.mark.parametrize(("check", "case", "layer"), FAULTS)
def test_a_fault_is_caught(check, case, layer):
    with pytest.raises((AssertionError, GradientError, ArithmeticError, RuntimeWarning)):
        run_check(case, layer, f"check_{check}")


def test_every_check_is_shown_to_fail():
    assert {f"check_{check}" for check, *_ in FAULTS} == {*CHECKS}


def test_one_test_reports_every_check_that_fails():
    class Faulty(DoublesCase):
        layer = forward(in_place)

        def check_of_the_users_own(self, xp):
            raise ValueError("never true")

    with pytest.raises(AssertionError) as caught:
        Faulty().test_layer(np)
    first, *found = [line for line in str(caught.value).split("\n") if "check_" in line]
    assert "checks of Faulty fail: check_" in first
    names = {"check_changes_neither_input_nor_gradient", "check_of_the_users_own"}
    assert {line.split(":")[0] for line in found} >= names
    DoublesCase().test_layer(np)


def test_random_output_skips_the_values_only():
    class Unknown(DoublesCase):
        def expected(self, params, x):
            return None

    Unknown().check_forward_equals_the_formula(np)
    wrong = backward(lambda dx, g: (dx * 1.000005, g))
    with pytest.raises(GradientError):
        run_check(Unknown, wrong, "check_gradients_equal_numerical_ones")


@pytest.mark.parametrize("method", ["make", "expected"])
def test_a_case_must_define_its_methods(method):
    with pytest.raises(TypeError, match=rf"a LayerCase defines {method}\(\)"):
        getattr(LayerCase(), method)(*([{}, None] if method == "expected" else []))
