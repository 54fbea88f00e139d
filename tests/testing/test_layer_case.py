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


class WrongValue(Sound):
    def forward(self, ctx, x):
        return x * 2.000001


class WrongForOneSample(Sound):
    def forward(self, ctx, x):
        y = x * 2.0
        y[-1:] = x[-1:]
        return y


class AnotherShape(Sound):
    def forward(self, ctx, x):
        return np.concatenate([2.0 * x, x], axis=1)


class PromisesAnotherShape(Sound):
    def setup(self, in_shapes):
        return (*in_shapes, 1)


class WrongGradient(Sound):
    def backward(self, ctx, dy):
        return dy * 2.00001, {}


class NoGradient(Sound):
    def backward(self, ctx, dy):
        return None, {}


class WidensForward(Sound):
    def forward(self, ctx, x):
        return x * np.float64(2.0)


class WidensBackward(Sound):
    def backward(self, ctx, dy):
        return dy * np.full(dy.shape, 2.0), {}


class NarrowsInput(Sound):
    def forward(self, ctx, x):
        return (x * 2.0).astype(np.float32)


class FailsOnNothing(Sound):
    def forward(self, ctx, x):
        return (2.0 / len(x)) * x * len(x)


class WrongShapeForNothing(Sound):
    def backward(self, ctx, dy):
        return (2.0 * dy if len(dy) else dy[..., None]), {}


class LooksAtTheBatch(Sound):
    def forward(self, ctx, x):
        return 2.0 * (x + x.mean(axis=0))


class AssumesContiguousMemory(Sound):
    def forward(self, ctx, x):
        return 2.0 * x.ravel(order="K").reshape(x.shape)


class AssumesContiguousGradients(Sound):
    def backward(self, ctx, dy):
        gaps = 2.0 if dy.flags.c_contiguous else 3.0
        return dy * gaps, {}


class ChangesItsInput(Sound):
    def forward(self, ctx, x):
        x *= 2.0
        return x


class ChangesTheGradient(Sound):
    def backward(self, ctx, dy):
        dy *= 2.0
        return dy, {}


class KeepsItsInput(Layer):
    """y = x², with x left on the layer."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        self.x = x
        return x * x

    def backward(self, ctx, dy):
        return 2.0 * self.x * dy, {}


class KeepsItsInputInADict(KeepsItsInput):
    def forward(self, ctx, x):
        self.kept = {"x": x}
        return x * x

    def backward(self, ctx, dy):
        return 2.0 * self.kept["x"] * dy, {}


class KeepsItsMask(Dropout):
    """Noticed in training only, where the mask is drawn."""

    def forward(self, ctx, x):
        y = super().forward(ctx, x)
        self.last = ctx.saved
        return y

    def backward(self, ctx, dy):
        ctx.saved = self.last
        return super().backward(ctx, dy)


class SavesInEvaluation(Sound):
    def forward(self, ctx, x):
        ctx.saved["x"] = x
        return 2.0 * x


class SaysThatItIsPure(Sound):
    """It is not: each training call counts."""

    pure = True
    calls = 0

    def forward(self, ctx, x):
        self.calls += 1
        return x * float(self.calls)


class CountsItsWalks(Dense):
    """Its gradient differs from walk to walk, and it promises that it does not."""

    pure = True
    walks = 0

    def backward(self, ctx, dy):
        self.walks += 1
        dx, grads = super().backward(ctx, dy)
        return dx, {**grads, "bias": grads["bias"] * float(self.walks)}


class LeavesTheKernels(Sound):
    """A sum that no recording sees, taken for a constant."""

    pure = True

    def forward(self, ctx, x):
        return x * float(np.asarray(x).sum())


class CountsTheEmptyBatch(BatchNormalization):
    """Moves its running mean towards nothing."""

    def forward(self, ctx, x):
        y = super().forward(ctx, x)
        if ctx.train and not len(x):
            ctx.update_state("mean", 0.5 * ctx.params["mean"])
        return y


class MovesInEvaluation(BatchNormalization):
    def forward(self, ctx, x):
        y = super().forward(ctx, x)
        ctx.params["mean"] *= 0.5
        return y


class ReplacesItsState(BatchNormalization):
    def forward(self, ctx, x):
        y = super().forward(ctx, x)
        self.params["mean"].value = self.params["mean"].value.copy()
        return y


class ReadsItsStateInBackward(BatchNormalization):
    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        return dx * self.params["mean"].value.sum(), grads


class NeedsTheInputGradient(Dense):
    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        return dx, grads if dx is not None else {}


class AnotherGradientAlone(Dense):
    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        if dx is None:
            grads["bias"] = grads["bias"] * 1.001
        return dx, grads


class NeedsTheParametersGradients(Dense):
    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        return dx if grads else 2 * dx, grads


class ForgetsTheBias(Dense):
    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        return dx, {"weight": grads["weight"]}


class TransposesTheWeight(Dense):
    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        return dx, {**grads, "weight": grads["weight"].T}


class ChangesItsSpecs(Dense):
    def setup(self, in_shapes):
        if self.W_specs is not None:
            self.W_specs["name"] = f"{self.name}/weight"
        return super().setup(in_shapes)


class ForgetsItsSpecs(Dense):
    def setup(self, in_shapes):
        self.W_specs = self.b_specs = None
        return super().setup(in_shapes)


class PicksOne(Layer):
    """The element of each sample (n,) that the second input says."""

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


class IsPositiveAsFloats(IsPositive):
    def forward(self, ctx, x):
        return (x > 0).astype(x.dtype)


class DoublesCase(LayerCase):
    layer = Sound

    def make(self):
        return self.layer("faulty")

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
    def make(self):
        return self.layer("faulty", 3)

    def expected(self, params, x):
        return x @ params["weight"] + params["bias"]


class NormCase(DoublesCase):
    def expected(self, params, x):
        scale = params["gamma"] / np.sqrt(params["var"] + 1e-5)
        return (x - params["mean"]) * scale + params["beta"]


ALONE = "check_parameter_gradients_do_not_need_the_input_gradient"
CHECKS = {name: getattr(LayerCase, name) for name in vars(LayerCase) if name.startswith("check_")}


def run_check(case, layer, name):
    made = type(case.__name__, (case,), {"layer": layer})()
    getattr(made, name)(np)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize(
    ("case", "layer"),
    [
        (DoublesCase, Sound),
        (DenseCase, Dense),
        (DropCase, Dropout),
        (NormCase, BatchNormalization),
        (PicksCase, PicksOne),
        (PositiveCase, IsPositive),
    ],
)
def test_a_sound_layer_passes(case, layer, name):
    run_check(case, layer, name)


@pytest.mark.parametrize(
    ("name", "case", "layer"),
    [
        ("check_forward_equals_the_formula", DoublesCase, WrongValue),
        ("check_forward_equals_the_formula", DoublesCase, WrongForOneSample),
        ("check_forward_equals_the_formula", DoublesCase, AnotherShape),
        ("check_output_has_the_shape_that_setup_promised", DoublesCase, AnotherShape),
        ("check_output_has_the_shape_that_setup_promised", DoublesCase, PromisesAnotherShape),
        ("check_gradients_equal_numerical_ones", DoublesCase, WrongGradient),
        ("check_gradients_equal_numerical_ones", DoublesCase, NoGradient),
        ("check_gradients_equal_numerical_ones", DenseCase, ForgetsTheBias),
        ("check_gradients_equal_numerical_ones", DenseCase, TransposesTheWeight),
        ("check_keeps_the_float_type", DoublesCase, WidensForward),
        ("check_keeps_the_float_type", DoublesCase, WidensBackward),
        ("check_keeps_the_float_type", DoublesCase, NarrowsInput),
        ("check_keeps_the_float_type", PositiveCase, IsPositiveAsFloats),
        ("check_takes_an_empty_batch", DoublesCase, FailsOnNothing),
        ("check_takes_an_empty_batch", DoublesCase, WrongShapeForNothing),
        ("check_takes_an_empty_batch", NormCase, CountsTheEmptyBatch),
        ("check_a_sample_alone_equals_itself_in_a_batch", DoublesCase, LooksAtTheBatch),
        ("check_memory_layout_does_not_matter", DoublesCase, AssumesContiguousMemory),
        ("check_memory_layout_does_not_matter", DoublesCase, AssumesContiguousGradients),
        ("check_changes_neither_input_nor_gradient", DoublesCase, ChangesItsInput),
        ("check_changes_neither_input_nor_gradient", DoublesCase, ChangesTheGradient),
        ("check_several_forwards_may_be_in_flight", SquaresCase, KeepsItsInput),
        ("check_several_forwards_may_be_in_flight", SquaresCase, KeepsItsInputInADict),
        ("check_several_forwards_may_be_in_flight", DropCase, KeepsItsMask),
        ("check_holds_no_array_between_calls", SquaresCase, KeepsItsInput),
        ("check_holds_no_array_between_calls", SquaresCase, KeepsItsInputInADict),
        ("check_holds_no_array_between_calls", DropCase, KeepsItsMask),
        (
            "check_parameter_gradients_do_not_need_the_input_gradient",
            DenseCase,
            NeedsTheInputGradient,
        ),
        (
            "check_parameter_gradients_do_not_need_the_input_gradient",
            DenseCase,
            AnotherGradientAlone,
        ),
        (
            "check_input_gradients_do_not_need_those_of_parameters",
            DenseCase,
            NeedsTheParametersGradients,
        ),
        ("check_evaluation_keeps_nothing", DoublesCase, SavesInEvaluation),
        ("check_a_recorded_program_equals_the_layer", DoublesCase, SaysThatItIsPure),
        ("check_a_recorded_program_equals_the_layer", DoublesCase, LeavesTheKernels),
        ("check_a_recorded_step_equals_the_layers", DoublesCase, SaysThatItIsPure),
        ("check_a_recorded_step_equals_the_layers", DenseCase, CountsItsWalks),
        ("check_evaluation_keeps_nothing", NormCase, MovesInEvaluation),
        ("check_training_updates_running_state_in_place", NormCase, ReplacesItsState),
        (
            "check_training_does_not_change_an_evaluation_in_flight",
            NormCase,
            ReadsItsStateInBackward,
        ),
        ("check_spec_dicts_are_not_changed", DenseCase, ChangesItsSpecs),
        ("check_spec_dicts_are_not_changed", DenseCase, ForgetsItsSpecs),
    ],
)
def test_a_fault_is_caught(name, case, layer):
    with pytest.raises((AssertionError, GradientError, ArithmeticError, RuntimeWarning)):
        run_check(case, layer, name)


def test_one_test_reports_every_check_that_fails():
    class Faulty(DoublesCase):
        layer = ChangesItsInput

        def check_of_the_users_own(self, xp):
            raise ValueError("never true")

    with pytest.raises(AssertionError) as caught:
        Faulty().test_layer(np)
    first, *found = [line for line in str(caught.value).split("\n") if "check_" in line]
    assert "checks of Faulty fail: check_" in first
    assert {line.split(":")[0] for line in found} >= {
        "check_changes_neither_input_nor_gradient",
        "check_of_the_users_own",
    }
    DoublesCase().test_layer(np)


def test_every_check_is_shown_to_fail():
    """A check that no seeded fault trips would prove nothing."""
    marks = test_a_fault_is_caught.pytestmark
    shown = {row[0] for mark in marks for row in mark.args[1]}
    assert shown == set(CHECKS)


def test_random_output_skips_the_values_only():
    class Unknown(DoublesCase):
        def expected(self, params, x):
            return None

    Unknown().check_forward_equals_the_formula(np)
    with pytest.raises(GradientError):
        run_check(Unknown, WrongGradient, "check_gradients_equal_numerical_ones")


@pytest.mark.parametrize("method", ["make", "expected"])
def test_a_case_must_say_what_to_test(method):
    with pytest.raises(TypeError, match=rf"a LayerCase defines {method}\(\)"):
        getattr(LayerCase(), method)(*([{}, None] if method == "expected" else []))
