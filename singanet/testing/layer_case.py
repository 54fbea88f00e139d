"""A class of tests for the contract of a layer."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from singanet.base.described import Counted
from singanet.errors import SingaNetError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.ops import ops_for
from singanet.optimizer import SGD, Optimizer
from singanet.params.grads import dense_gradient
from singanet.params.param import Param
from singanet.testing.gradient_checks import check_gradients
from singanet.types import Array, Shapes

if TYPE_CHECKING:
    from typing_extensions import Self


def parts_of(value: Any) -> list[Any]:
    """Return a list of one array or of several."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def map_parts(function: Any, value: Any) -> Any:
    """Apply ``function`` to one array, or to each of several."""
    return (
        [function(part) for part in value] if isinstance(value, (list, tuple)) else function(value)
    )


def on_host(array: Any) -> Any:
    """Return the array as a NumPy array."""
    return array.get() if hasattr(array, "get") else array


def arrays_on(layer: Layer) -> dict[str, int]:
    """Count the arrays in each attribute of the layer, without parameters."""
    found: dict[str, int] = {}
    for attribute, value in vars(layer).items():
        for part in value.values() if isinstance(value, dict) else parts_of(value):
            if hasattr(part, "dtype") and hasattr(part, "shape") and not isinstance(part, Param):
                found[attribute] = found.get(attribute, 0) + 1
    return found


def spread(array: Any) -> Any:
    """Return the values with gaps and reversed axes in memory, so that nothing is contiguous."""
    wide = ops_for(array).xp.zeros((*array.shape[::-1], 2), array.dtype)
    spaced = wide[..., 0].transpose()
    spaced[...] = array
    return spaced


LAYOUTS = 4
"""The number of arrays that `laid_out` returns."""


def laid_out(array: Any) -> list[Any]:
    """Return the values in four layouts: contiguous, `spread`, backwards, with swapped axes.

    In the last one the stride of axes of one element is wrong, as no kernel may read it.
    """
    xp = ops_for(array).xp
    swapped = xp.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
    mirror = (slice(None, None, -1),) * array.ndim
    return [array, spread(array), array[mirror].copy()[mirror], _odd(xp, swapped)]


def _odd(xp: Any, array: Any) -> Any:
    """Return ``array`` with other strides for axes of one element."""
    odd = [7 * s + 8 if n == 1 else s for n, s in zip(array.shape, array.strides, strict=True)]
    return xp.lib.stride_tricks.as_strided(array, array.shape, odd) if array.size else array


class RecordedPair:
    """Two equal, built ``layers``: the first runs recorded programs, the second does not.

    Each call compares outputs, gradients and running state to the bit.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.nets = [_net_of(layer) for layer in layers]
        self.nets[1].programs.enabled = False

    def train(self, x: Any, gradient: Callable[[Any], Any]) -> None:
        """Run a training forward on ``x``, and backward from ``gradient(output)``."""
        ys = [net.forward(True, x) for net in self.nets]
        _expect_same(*ys)
        name = self.nets[0].nodes()[-1].name
        walks = [net.backward({name: gradient(y)}) for net, y in zip(self.nets, ys, strict=True)]
        for one, two in zip(*walks, strict=True):
            assert one.names == two.names
            _expect_same(one.grads, two.grads)
        self._expect_same_params()

    def step(self, x: Any, optimizers: Sequence[Optimizer]) -> None:
        """Run a training step on ``x``, each net with its own optimizer."""
        found = []
        net: Any
        for net, optimizer in zip(self.nets, optimizers, strict=True):
            net.loss = net.loss or _HalfSquares()
            found.append(net.step(x, np.zeros(2), optimizer))
        one, two = found
        assert one == two
        self._expect_same_params()

    def evaluate(self, x: Any) -> None:
        """Evaluate ``x``."""
        _expect_same(*(net.forward(False, x) for net in self.nets))
        self._expect_same_params()

    def programs(self) -> int:
        """Return the number of programs that the first net recorded."""
        assert self.in_python() or not self.nets[0].programs.refusals
        return len(self.nets[0].programs.reports())

    def notes(self) -> list[str]:
        """Return the Python steps of the first net, with the reasons."""
        return list(self.nets[0].programs.notes)

    def in_python(self) -> bool:
        """Return True if loops over the layer are not recorded, as for Python steps.

        False if its class declares that it is pure, and so can be recorded.
        """
        refusals, layer = self.nets[0].programs.refusals, self.nets[0].layers[0]
        of_loops = [why for why in refusals if why.startswith("a caller's loop over")]
        return bool(refusals) and of_loops == refusals and not getattr(layer, "pure", False)

    def _expect_same_params(self) -> None:
        _expect_same(*(net.param_values() for net in self.nets))


class _HalfSquares(Counted):
    """½ Σ y² of the outputs y, an array or several, with the gradient y."""

    def forward(self, flag: Any, x: Any, y: Any) -> Array:
        """Return one loss per sample."""
        self._outputs = x
        parts = [part.reshape(len(part), -1) * 1.0 for part in parts_of(x)]
        losses: Array = 0.5 * sum((part * part).sum(axis=1).sum() for part in parts[1:])
        return losses + 0.5 * (parts[0] * parts[0]).sum(axis=1)

    def backward(self) -> Any:
        """Return the outputs, as arrays that may be changed."""
        outputs, self._outputs = self._outputs, None
        return map_parts(lambda part: part * 1.0, outputs)


def _net_of(layer: Layer) -> FeedForwardNet:
    net = FeedForwardNet(seed=3)
    layer.input_shape = layer.in_shapes
    net.add(layer)
    return net


def _expect_same(one: Any, two: Any) -> None:
    for a, b in zip(parts_of(one), parts_of(two), strict=True):
        if isinstance(a, (list, tuple)):
            _expect_same(a, b)
        else:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
            assert not a.size or _axes(a) == _axes(b)


def _axes(array: Any) -> list[int]:
    """Return the axes of several elements from the outermost in memory; views may have gaps."""
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    return sorted(axes, key=lambda axis: -abs(array.strides[axis]))


def _channels_last(array: Any) -> Any:
    """Return ``array`` with the axes behind the batch in reverse order in memory."""
    axes = (0, *range(array.ndim)[:0:-1]) if array.ndim else ()
    return np.ascontiguousarray(array.transpose(axes)).transpose(axes)


def _time_first(array: Any) -> Any:
    """Return ``array`` with its first two axes swapped in memory."""
    if array.ndim < 2:
        return array
    return np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1)


def run_checks(case: Any, xp: Any, left_out: Sequence[str] = ()) -> None:
    """Call each method ``check_...`` of ``case`` with ``xp``, except ``left_out``.

    Base classes come first. Errors: an `AssertionError` lists all checks that fail, by name.
    """
    classes = reversed(type(case).__mro__)
    names = dict.fromkeys(n for kind in classes for n in vars(kind) if n.startswith("check_"))
    failed: dict[str, Exception] = {}
    for name in (name for name in names if name not in left_out):
        try:
            getattr(case, name)(xp)
        except Exception as error:  # noqa: BLE001 (a later check must run all the same)
            failed[name] = error
    if failed:
        found = [f"{name}: {_told(error)}" for name, error in failed.items()]
        text = f"{len(failed)} of {len(names) - len(left_out)} checks of {type(case).__name__} fail"
        raise AssertionError("\n".join([f"{text}: {', '.join(failed)}", *found])) from next(
            iter(failed.values())
        )


def _told(error: Exception) -> str:
    """Return type and text of an error, and the line of the check that raised it."""
    _, *frames = traceback.extract_tb(error.__traceback__)
    at = f" in line {frames[0].lineno}, {frames[0].line}" if frames else ""
    return f"{type(error).__name__}{at}: {error}"


class _Pass(NamedTuple):
    """A forward and a backward of ``layer``."""

    layer: Layer
    x: Any
    ctx: Context
    y: Any
    dy: Any
    dx: Any
    grads: dict[str, Array]
    changes: list[tuple[Any, Any]]
    """The arrays that the layer got, each with a copy from before."""
    stored: tuple[dict[str, int], dict[str, int]]
    """The arrays on the layer, before and after."""

    def results(self) -> list[Any]:
        """Return outputs and gradients."""
        return [*parts_of(self.y), *_flat((self.dx, self.grads))]


def _flat(gradients: tuple[Any, dict[str, Array]]) -> list[Any]:
    dx, grads = gradients
    return [*parts_of(dx), *(grads[suffix] for suffix in sorted(grads))]


def _expect_equal(got: Iterable[Any], wanted: Iterable[Any]) -> None:
    for one, two in zip(got, wanted, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            np.testing.assert_array_equal(on_host(one), on_host(two))


class LayerCase:
    """A base class of test cases: define `make`, `in_shapes` and `expected`, and run pytest.

    It has one test, `test_layer`, which runs the methods ``check_...`` in order. It gets the array
    module from a fixture named ``xp``: numpy, or cupy. Each check can be called alone, too.
    """

    in_shapes: Shapes = (4,)
    _modes: tuple[bool, ...] = (True, False)
    """The values of ``train`` to check."""
    tolerance = 1e-6
    """The allowed relative error between backward and numerical gradients in float64."""
    batch = 3
    _on_numpy = (
        "check_gradients_equal_numerical_ones",
        "check_a_recorded_program_equals_the_layer",
        "check_a_recorded_step_equals_the_layers",
        "check_spec_dicts_are_not_changed",
    )
    """The checks that use NumPy arrays alone."""

    @cached_property
    def _passes(self) -> dict[Any, _Pass]:
        return {}

    def make(self) -> Layer:
        """Return a new layer that is not built."""
        raise TypeError("a LayerCase defines make()")

    def expected(self, params: dict[str, Array], x: Any) -> Any:
        """Return the evaluation output for ``x`` and ``params`` by an independent formula.

        Both are NumPy arrays, ``params`` by suffix. None skips the check of values, for a layer
        with random output.
        """
        raise TypeError("a LayerCase defines expected()")

    def draw(self, rng: np.random.Generator, batch: int) -> Any:
        """Return random float64 inputs of ``batch`` samples, NumPy arrays drawn from ``rng``."""
        if isinstance(self.in_shapes, list):
            return [rng.standard_normal((batch, *shape)) for shape in self.in_shapes]
        return rng.standard_normal((batch, *self.in_shapes))

    def built(self, xp: Any = np, dtype: Any = np.float32) -> Layer:
        """Return a built layer with random parameters of ``dtype`` in the array module ``xp``."""
        layer = self.make()
        layer.build(self.in_shapes)
        rng = np.random.default_rng(3)
        for param in layer.params.values():
            values = 0.5 * rng.standard_normal(param.shape)
            # Running variances must be positive.
            param.retype(xp.asarray(np.abs(values) + 0.5 if param.is_state else values, dtype))
        return layer

    def run(
        self, layer: Layer, x: Any, train: bool, keep: bool = True, seed: int = 0
    ) -> tuple[Context, Any]:
        """Call ``layer.forward`` on ``x`` in a new context, and return context and output.

        ``train`` and ``keep`` are of the context; ``seed`` determines its random draws.
        """
        parts = parts_of(x)
        params = {suffix: param.value for suffix, param in layer.params.items()}
        dtype = next((p.dtype for p in parts if p.dtype.kind == "f"), np.dtype(np.float32))
        ctx = Context(ops_for(parts[0]), np.random.default_rng(seed), params, train, keep, dtype)
        return ctx, layer.forward(ctx, x)

    def run_backward(self, layer: Layer, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Call ``layer.backward`` on ``ctx`` and ``dy``, and make row-sparse gradients dense."""
        dx, grads = layer.backward(ctx, dy)
        shapes = {suffix: param.shape for suffix, param in layer.params.items()}
        return dx, {
            suffix: dense_gradient(ctx.ops, grad, shapes[suffix]) for suffix, grad in grads.items()
        }

    def inputs(self, xp: Any, dtype: Any, batch: int | None = None, seed: int = 0) -> Any:
        """Return random inputs of ``dtype`` in ``xp``; integer inputs stay integers.

        ``batch`` is the number of samples, by default the attribute; ``seed`` determines the draws.
        """
        drawn = self.draw(np.random.default_rng(seed), self.batch if batch is None else batch)
        return map_parts(lambda a: xp.asarray(a.astype(dtype) if a.dtype.kind == "f" else a), drawn)

    def gradient_like(self, y: Any, seed: int = 5) -> Any:
        """Return a random gradient in the form of the output ``y``, drawn from ``seed``."""
        rng = np.random.default_rng(seed)
        return map_parts(
            lambda a: ops_for(a).xp.asarray(rng.standard_normal(a.shape).astype(a.dtype)), y
        )

    def _passed(self, xp: Any, dtype: Any, train: bool) -> _Pass:
        """Return a forward and a backward in ``xp``, which all checks share."""
        if (key := (xp, np.dtype(dtype), train)) not in self._passes:
            layer = self.built(xp, dtype)
            stored, x = arrays_on(layer), self.inputs(xp, dtype)
            given = map_parts(lambda a: a.copy(), x)
            ctx, y = self.run(layer, x, train)
            dy = self.gradient_like(y)
            dy_given = map_parts(lambda a: a.copy(), dy)
            dx, grads = self.run_backward(layer, ctx, dy)
            changes = [*zip(parts_of(x), parts_of(given), strict=True),
                       *zip(parts_of(dy), parts_of(dy_given), strict=True)]  # fmt: skip
            kept = (stored, arrays_on(layer))
            self._passes[key] = _Pass(layer, given, ctx, y, dy_given, dx, grads, changes, kept)
        return self._passes[key]

    # -- the checks -------------------------------------------------------------------------

    def test_layer(self, xp: Any) -> None:
        """Run every method ``check_...`` in ``xp``; one error reports all that fail, by name."""
        try:
            run_checks(self, xp, () if xp is np else self._on_numpy)
        finally:
            self._passes.clear()

    def check_forward_equals_the_formula(self, xp: Any) -> None:
        """Compare outputs in ``xp`` with `expected`."""
        layer = self.built(xp, np.float64)
        x = self.inputs(xp, np.float64)
        params = {suffix: on_host(param.value) for suffix, param in layer.params.items()}
        expected = self.expected(params, map_parts(on_host, x))
        if expected is None:
            return
        _, y = self.run(layer, x, train=False, keep=False)
        for got, want in zip(parts_of(y), parts_of(expected), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(on_host(got), want, rtol=1e-10, atol=1e-10)

    def check_output_has_the_shape_that_setup_promised(self, xp: Any) -> None:
        """Compare shapes of outputs in ``xp`` with `setup`."""
        one = self._passed(xp, np.float32, False)
        promised = one.layer.get_output_sample_shape()
        shapes = promised if isinstance(promised, list) else [promised]
        assert [part.shape[1:] for part in parts_of(one.y)] == shapes

    def check_gradients_equal_numerical_ones(self, xp: Any = np) -> None:
        """Compare backward in NumPy with differences of forwards, whatever ``xp`` is."""
        for train in self._modes:
            layer = self.built(np, np.float64)
            check_gradients(
                layer, self.inputs(np, np.float64), train=train, tolerance=self.tolerance
            )

    def check_keeps_the_float_type(self, xp: Any) -> None:
        """Check that arrays in ``xp`` have the dtype of the input."""
        for dtype in (np.float32, np.float64):
            for train in self._modes:
                one = self._passed(xp, dtype, train)
                floats = [*parts_of(one.dx), *one.grads.values()]
                if one.layer.traits.gives_integers:
                    assert {part.dtype.kind for part in parts_of(one.y)} <= set("iub")
                else:
                    floats += parts_of(one.y)
                assert {part.dtype for part in floats if part is not None} <= {np.dtype(dtype)}

    def check_takes_an_empty_batch(self, xp: Any) -> None:
        """Run the layer in ``xp`` on no samples."""
        for train in self._modes:
            layer = self.built(xp)
            before = [on_host(param.value).copy() for param in layer.params.values()]
            x = self.inputs(xp, np.float32, batch=0)
            ctx, y = self.run(layer, x, train)
            dx, grads = self.run_backward(layer, ctx, self.gradient_like(y))
            for part, given in zip(parts_of(dx), parts_of(x), strict=True):
                assert part is None or part.shape == given.shape
            assert all(bool((grad == 0).all()) for grad in grads.values())
            for value, param in zip(before, layer.params.values(), strict=True):
                np.testing.assert_array_equal(on_host(param.value), value)

    def check_a_sample_alone_equals_itself_in_a_batch(self, xp: Any) -> None:
        """Compare a sample in ``xp`` alone and in a batch."""
        layer = self.built(xp, np.float64)
        x = self.inputs(xp, np.float64, batch=4)
        _, whole = self.run(layer, x, train=False)
        _, alone = self.run(layer, map_parts(lambda a: a[:1], x), train=False)
        for got, want in zip(parts_of(alone), parts_of(whole), strict=True):
            share = len(want) // 4
            np.testing.assert_allclose(on_host(got), on_host(want[:share]), rtol=1e-10, atol=1e-12)

    def check_memory_layout_does_not_matter(self, xp: Any) -> None:
        """Compare results in ``xp`` for several strides."""
        for case in (self, *self._narrowed()):
            for train in self._modes:
                first = case._passed(xp, np.float64, train)
                others = [case._outcome(first, k) for k in range(1, LAYOUTS)]
                for a, *several in zip(first.results(), *others, strict=True):
                    for b in several if a is not None else ():
                        np.testing.assert_allclose(on_host(b), on_host(a), rtol=1e-10, atol=1e-12)

    def _outcome(self, first: _Pass, layout: int) -> list[Any]:
        """Return outputs and gradients; inputs and ``dy`` have ``layout`` of `laid_out`."""
        x, dy = (map_parts(lambda a: laid_out(a)[layout], v) for v in (first.x, first.dy))
        ctx, y = self.run(first.layer, x, first.ctx.train)
        return [*parts_of(y), *_flat(self.run_backward(first.layer, ctx, dy))]

    def _narrowed(self) -> list[Self]:
        """Return cases of one sample, with extent 1 along each axis in turn, and then along all.

        Shapes that the layer refuses, or that `draw` does not support, are skipped.
        """
        shapes = self.in_shapes if isinstance(self.in_shapes, list) else [self.in_shapes]
        rank, found = max(map(len, shapes)), []
        for axes in [*([axis] for axis in range(rank)), range(rank)]:
            narrow = [tuple(1 if k in axes else n for k, n in enumerate(shape)) for shape in shapes]
            given = narrow if isinstance(self.in_shapes, list) else narrow[0]
            kind: type[Self] = type("Narrow", (type(self),), {"in_shapes": given, "batch": 1})
            case = kind()
            with suppress(SingaNetError):
                layer, x = case.built(np, np.float64), case.inputs(np, np.float64)
                if [part.shape[1:] for part in parts_of(x)] == narrow:
                    for train in self._modes:
                        case.run(layer, x, train)
                    found.append(case)
        return found

    def check_changes_neither_input_nor_gradient(self, xp: Any) -> None:
        """Check that arrays in ``xp`` are not changed."""
        for train in self._modes:
            for now, then in self._passed(xp, np.float32, train).changes:
                np.testing.assert_array_equal(on_host(now), on_host(then))

    def check_several_forwards_may_be_in_flight(self, xp: Any) -> None:
        """Compare passes in ``xp`` one by one and interleaved."""
        for train in self._modes:
            one, layer = self._passed(xp, np.float64, train), self.built(xp, np.float64)
            other = self.inputs(xp, np.float64, seed=1)
            ctx, y = self.run(layer, other, train, seed=1)
            dy = self.gradient_like(y)
            alone = [(one.dx, one.grads), self.run_backward(layer, ctx, dy)]
            first, second = (self.run(layer, x, train, seed=seed)[0]
                             for seed, x in enumerate((one.x, other)))  # fmt: skip
            last = self.run_backward(layer, second, dy)
            for got, want in zip(
                (self.run_backward(layer, first, one.dy), last), alone, strict=True
            ):
                _expect_equal(_flat(got), _flat(want))

    def check_training_does_not_change_an_evaluation_in_flight(self, xp: Any) -> None:
        """Compare backward of an evaluation in ``xp`` before and after a training forward."""
        one, layer = self._passed(xp, np.float64, False), self.built(xp, np.float64)
        ctx, _ = self.run(layer, one.x, train=False)
        self.run(layer, self.inputs(xp, np.float64, seed=1), train=True)
        _expect_equal(_flat(self.run_backward(layer, ctx, one.dy)), _flat((one.dx, one.grads)))

    def check_holds_no_array_between_calls(self, xp: Any) -> None:
        """Check that the layer stores no array of ``xp``."""
        for train in self._modes:
            before, after = self._passed(xp, np.float32, train).stored
            assert after == before

    def check_parameter_gradients_do_not_need_the_input_gradient(self, xp: Any) -> None:
        """Compare parameter gradients in ``xp`` without the input gradient."""
        one = self._passed(xp, np.float64, False)
        ctx, _ = self.run(one.layer, one.x, train=False)
        ctx.needs_input_grad = False
        _, alone = self.run_backward(one.layer, ctx, one.dy)
        assert one.grads.keys() == alone.keys()
        _expect_equal(alone.values(), one.grads.values())

    def check_input_gradients_do_not_need_those_of_parameters(self, xp: Any) -> None:
        """Compare input gradients in ``xp`` without parameter gradients."""
        one = self._passed(xp, np.float64, False)
        ctx, _ = self.run(one.layer, one.x, train=False)
        ctx._needs_param_grads = False
        alone, _ = self.run_backward(one.layer, ctx, one.dy)
        _expect_equal(parts_of(alone), parts_of(one.dx))

    def check_evaluation_keeps_nothing(self, xp: Any) -> None:
        """Check that an evaluation in ``xp`` saves no array, and changes no parameter."""
        layer = self.built(xp)
        before = [on_host(param.value).copy() for param in layer.params.values()]
        ctx, _ = self.run(layer, self.inputs(xp, np.float32), train=False, keep=False)
        assert ctx.saved == {}
        _expect_equal((param.value for param in layer.params.values()), before)

    def check_training_updates_running_state_in_place(self, xp: Any) -> None:
        """Check that a training forward in ``xp`` changes arrays, and does not replace them."""
        layer = self.built(xp)
        before = [param.value for param in layer.params.values()]
        self.run(layer, self.inputs(xp, np.float32), train=True)
        for array, param in zip(before, layer.params.values(), strict=True):
            assert param.value is array

    def check_a_recorded_program_equals_the_layer(self, xp: Any = np) -> None:
        """Compare a loop over recorded programs with layers, for inputs of three memory orders.

        It is in NumPy whatever ``xp`` is.
        """
        for ordered in (np.asarray, _channels_last, _time_first):
            pair = RecordedPair([self.built(np, np.float32) for _ in range(2)])
            for seed in range(4 if ordered is np.asarray else 2):
                x = map_parts(ordered, self.inputs(np, np.float32, seed=seed))
                pair.train(x, partial(self.gradient_like, seed=seed))
                pair.evaluate(x)
            # A caller's loop walks a layer that is a Python step by layers.
            assert pair.programs() == (1 if pair.in_python() else 2)

    def check_a_recorded_step_equals_the_layers(self, xp: Any = np) -> None:
        """Compare recorded training steps with layers, in NumPy whatever ``xp`` is."""
        pair = RecordedPair([self.built(np, np.float32) for _ in range(2)])
        optimizers = SGD(0.01, momentum=0.9), SGD(0.01, momentum=0.9)
        for seed in range(4):
            pair.step(self.inputs(np, np.float32, seed=seed), optimizers)
        assert pair.programs() == 1
        # A layer that declares itself pure must not be refused as impure.
        assert not (pair.notes() and getattr(self.make(), "pure", False))

    def check_spec_dicts_are_not_changed(self, xp: Any = np) -> None:
        """Check that `build` applies dicts of initializers, and leaves them, whatever ``xp`` is."""
        layer = self.make()
        given = {"init": "constant", "value": 0.25, "lr_mult": 2.0}
        specs = {
            attribute: dict(value or given)
            for attribute, value in vars(layer).items()
            if attribute.endswith("_specs") and (value is None or isinstance(value, dict))
        }
        copies = {attribute: dict(spec) for attribute, spec in specs.items()}
        vars(layer).update(specs)
        layer.build(self.in_shapes)
        layer.param_values()
        assert specs == copies
        trained = [param for param in layer.params.values() if param.trainable]
        applied = [param for param in trained if param.spec.lr_mult == 2.0]
        assert applied or not trained or given not in specs.values()
        assert all((abs(param.value) <= 0.25).all() for param in applied)
