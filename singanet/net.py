"""FeedForwardNet: a directed acyclic graph of layers, trained layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from singanet.base.arguments import checked_count
from singanet.base.described import checked_call, made_of
from singanet.base.elsewhere import missing_attribute
from singanet.base.tracebacks import entry_point
from singanet.engine.net import Net
from singanet.errors import ArgumentError, brief
from singanet.program.programs import Programs, programs_of
from singanet.training.options import USUAL, FitOptions

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self

    from singanet.base.notebooks import Shown
    from singanet.budget import MemoryPlan
    from singanet.checkpoint import LoadReport
    from singanet.data import Tokenizer
    from singanet.decoding import Decoder, DraftModel
    from singanet.decoding.processors import ScoreFunction
    from singanet.engine.timeline import PeakMemory
    from singanet.gradients.first_order import Directions, N, Names, Y
    from singanet.layers.layer import Layer
    from singanet.loss import Loss, MultiLoss
    from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
    from singanet.params.grads import LayerGradients
    from singanet.program.program import Program
    from singanet.program.recompute import Recompute
    from singanet.program.tuning import TuningReport
    from singanet.saving.predictor import Predictor
    from singanet.training.compiled import Given
    from singanet.training.display import History
    from singanet.training.evaluation import Evaluation, Quantization
    from singanet.training.rate_range import RateRange
    from singanet.types import Array


class FeedForwardNet(Net):
    """A net of layers in topological order, whose `backward` yields gradients layer by layer.

    A list of layers is a chain. Without layers and symbols the net is empty, and `add` builds it.
    ``loss``, ``metric``, ``seed``, ``rng``, ``device`` and ``dtype`` are attributes. Errors:
    arguments of other types; the errors of `add`.

    Args:
        layers: List of layers, in which named nets may stand for their layers; or a loss, as the
            first argument of an empty net.
        metric: The `Metric` that `train`, `step` and `evaluate` compute, or None.
        loss: The `Loss` that `train`, `step` and `evaluate` use, and whose link `predict` applies;
            a `MultiLoss` for several outputs; None until `compile` sets one.
        inputs: Symbol or symbols of `Input`, for a net of the layers between them and ``outputs``.
        outputs: Symbol or symbols that the net computes.
        name: The name of the net, a string, which it needs to be nested in another.
        seed: Int from 0 on, which fixes the initial parameters and every random draw. None takes
            the next seed after `singanet.set_seed`, or a fresh one.

    Examples:
        >>> Dense = singanet.layers.Dense
        >>> net = singanet.FeedForwardNet([Dense("hidden", 8), Dense("out", 3)], seed=0)
        >>> net.compile("adam", "softmax_cross_entropy", ["accuracy"])
        >>> history = net.fit(np.eye(6), np.arange(6) % 3, epochs=2, verbose=False)
        >>> len(history["loss"]), net.predict(np.eye(6)).shape
        (2, (6, 3))
    """

    if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
        __getattr__ = missing_attribute

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, with the optimizer's state of this net."""
        if self.compiled is not None:
            from singanet.training.compiled import expect_compiled

            expect_compiled(self, "net").turn(self)
        return vars(self)

    def make_executor(self) -> Programs:
        """Return the executor that records passes and steps as programs when a call repeats."""
        return Programs()

    @property
    def programs(self) -> Programs:
        """The recorded programs. Errors: `CallOrderError` if offloaded, or on several ranks."""
        return programs_of(self)

    def _build_for(self, where: str, x: Any) -> None:
        """Build a list of layers for the samples ``x``, as `fit` does."""
        from singanet.training.batches import fed

        fed(where, self, x, learns=True)

    @checked_call
    def upto(self, *layers: Layer | str, seed: int | None = None) -> FeedForwardNet:
        """Return a net of the layers that ``layers`` depend on, with ``layers`` as its outputs.

        Use it to put a new head on a trained net. Both nets share the layers; loss, metric,
        optimizer and `freeze` are not copied. Errors: an unknown layer, no layer, or an offloaded
        net.

        Args:
            layers: Layers of this net, or their names.
            seed: Int from 0 on, the seed of layers that are added later; None as for the
                constructor.
        """
        from singanet.graph.subgraph import add_upto

        self._execution_plan()  # fills empty parameters by this net's own seed
        made = FeedForwardNet(seed=seed)
        made.device, made.dtype = self.device, self.dtype
        add_upto(made, self, [each if isinstance(each, str) else each.name for each in layers])
        return made

    @checked_call
    def as_type(self, dtype: Any, rounding: str | None = None) -> Self:
        """Convert every parameter to a float type, compute in it from now on, and return the net.

        Errors: `ArgumentError` if ``dtype`` is not a float type; `BackendError` for "float32_fast"
        if the kernels or the processor lack such products; `CallOrderError` for "bfloat16" if the
        net is offloaded, nested or on several ranks.

        Args:
            dtype: "float32", "float64" or "float16", or the NumPy type. "bfloat16" stores weight
                matrices and embedding tables in two bytes a number and computes in float32; kernels
                may round the rows that they multiply by such a matrix. "float32_fast" stores
                float32, but convolutions and products round their operands to bfloat16.
            rounding: The rounding of updates in "bfloat16": "stochastic", which None means, draws
                from ``net.rng``; "remainder" also stores the lower 16 bits, so updates equal those
                in float32.
        """
        from singanet.engine.holding import hold_as

        hold_as(self, dtype, rounding, super().as_type)
        return self

    @checked_call
    def quantize(
        self,
        dtype: str,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        data: Any = None,
    ) -> Quantization:
        """Quantize matrices and embedding tables to "int8" or "int4" blocks, for prediction.

        Each 32 neighbouring inputs of an output share a float16 scale, with "int4" also a minimum:
        the blocks Q8_0 and Q4_1 of llama.cpp, about 1.06 and 0.63 bytes a number. Embedding tables
        always get 8 bits. Matrices stay as they are if 32 does not divide their inputs. Products
        are computed in float32; for few rows kernels may quantize the activations by blocks too.

        A quantized net refuses training steps, except for the pairs that `adapt` adds.
        ``as_type("float32")`` restores arrays. Returns a report of the cost. Errors: another type;
        the errors of ``as_type("bfloat16")``.

        Args:
            dtype: "int8" or "int4".
            x: Samples to compute the loss on before and after, as for `evaluate`; None for no loss.
            y: Their targets, as for `evaluate`.
            batch_size: Positive int, the samples that are computed at a time; None for 32 of ``x``
                and 4 of ``data``.
            data: Typical inputs of the net, for "int4". The other inputs of a matrix then
                compensate each input's rounding error (GPTQ, Frantar et al. 2022). None rounds each
                weight by itself.
        """
        from singanet.training.evaluation import quantize

        return quantize(self, dtype, x, y, batch_size, data)

    @checked_call
    def adapt(
        self,
        lora: int,
        where: str | Sequence[str] = "attention",
        alpha: float | None = None,
        dropout: float = 0.0,
    ) -> list[str]:
        """Freeze the net and add trainable low-rank pairs (LoRA) of rank ``lora`` to its weights.

        A weight W (in, out) then computes x W + (alpha / lora) (x A) B. A (in, lora) is drawn and B
        (lora, out) is zero, so outputs do not change at first (Hu et al. 2021). Weights that are
        shared, that read sparse inputs or that belong to a nested net are skipped. Pairs are
        parameters of their layers, ``<layer>/<weight>.lora_a`` and ``.lora_b``. Returns the names
        of the adapted weights. Errors: a rank above that of a weight; a name that matches nothing;
        a net that has pairs already, is offloaded, nested in another or an Executor's.

        Args:
            lora: Positive int, the rank of the pairs.
            where: "attention" for the projections of all attention layers; "all" for every weight
                of these, of `GatedUnit` and of `Dense`; or names and patterns of layers or weights,
                such as "layers/*/unit" and "*/query_weight".
            alpha: Number, the scale of the pairs times ``lora``; None for ``lora``.
            dropout: The probability of dropping an input of a pair in training.
        """
        from singanet.engine.adapting import adapt

        return adapt(self, lora, where, alpha, dropout)

    @checked_call
    def merge(self) -> list[str]:
        """Add the pairs that `adapt` made into their weights, and remove the pairs.

        W becomes W + (alpha / lora) A B, rounded once to the type of W. Everything stays frozen;
        ``net.trainable = True`` unfreezes it. Returns the names of the weights. Errors: a net
        without pairs; a net that is offloaded or nested in another; a weight that is read-only or
        has become shared. On an error the net is unchanged.
        """
        from singanet.engine.adapting import merge

        return merge(self)

    @checked_call
    def compile(
        self,
        optimizer: Optimizer | Wrapper | str,
        loss: Loss | MultiLoss | str | None = None,
        metrics: Given | None = None,
        mixed_precision: MixedPrecision | str | None = None,
        weighted_metrics: Given | None = None,
    ) -> None:
        """Set the optimizer, loss and metrics of `fit`.

        A metric is named after its class (``accuracy``), or by its key in a dict; the first becomes
        the net's metric. `as_type` undoes ``mixed_precision``. Errors: an argument that is not an
        optimizer, loss or metric; `BackendError` for an unsupported precision. On an error the net
        is unchanged.

        Args:
            optimizer: An optimizer, or its name, such as "adam", with Keras' learning rate.
            loss: A loss, or its name, such as "mse"; a `MultiLoss` for several outputs. None for
                the net's own loss.
            metrics: A metric or its name, such as "accuracy", a list of these, or a dict by name;
                for several outputs a dict by output layer, whose metrics get the names
                ``<output>_accuracy``. None for the net's own metric.
            mixed_precision: "float16", or a `MixedPrecision`, converts the net to that type and
                scales the loss. "float32_fast" and "bfloat16" let products round their operands to
                bfloat16 if the processor supports it; "bfloat16" also stores arrays in it that only
                oneDNN's kernels touch. "auto" is "bfloat16" if that is faster. None computes in the
                net's type.
            weighted_metrics: Metrics, given as ``metrics``, that count the weights of samples and
                classes.
        """
        from singanet.training.compiled import compile_net

        compile_net(self, optimizer, loss, metrics, mixed_precision, weighted_metrics)

    @made_of(FitOptions)
    def fit(self, options: FitOptions) -> History:  # noqa: D417 - its arguments are FitOptions'
        """Train from ``initial_epoch`` up to epoch ``epochs``, by the streaming backward.

        Returns a `History`: lists of the loss, the metrics and the learning rate by epoch. A second
        call continues the training. Errors before the first step: arguments out of range; a net
        that is not compiled; data that do not fit or are empty; a budget that is too small; errors
        of callbacks. Errors later: targets that do not fit; data that end early; errors of data or
        callbacks, which ``on_error`` receives.

        Args:
            x: The samples: an array (N, ...), a list, a data frame, or a sparse matrix; for several
                inputs a dict by name, or a list in their order. Or a source of batches ``(x, y)``
                or ``(x, y, sample_weight)`` instead of ``x`` and ``y``: a loader, another iterable,
                or a function of the epoch that returns one.
            y: The targets of the samples: an array, or for several outputs a dict or list like
                ``x``.
            batch_size: Positive int, the samples of a step if ``x`` are samples; the last batch of
                an epoch may be smaller.
            epochs: Positive int, the number of the epoch to stop at; epochs count from 0.
            validation_data: ``(x, y)``, ``(x, y, sample_weight)`` or a source of batches, evaluated
                after each epoch; its measures are named ``val_loss``, ``val_accuracy`` and so on.
            validation_split: Number in [0, 1), the fraction of the samples, at their end, to
                evaluate instead of training on them.
            callbacks: List of callbacks of `singanet.training.callbacks`, or your own.
            shuffle: Whether each epoch has an order of its own, drawn from the net's seed and the
                epoch's number; a source has its own order.
            class_weight: Dict of weights, numbers from 0 on, by class, for integer, 0/1 or one-hot
                targets; other classes weigh 1.
            sample_weight: Array (N,) of factors of the samples' losses, or of the shape of
                positions, such as (N, T). The mean still divides by the number of samples.
            initial_epoch: Int from 0 on, the number of the first epoch.
            resume: Path of a training checkpoint of `ModelCheckpoint`, or of its folder, or a state
                to continue from exactly. A folder without a checkpoint starts a new training.
            clip: Positive number, the bound on gradients; None for none.
            clip_by: The bounded quantity: "layer", the norm of each layer's gradients; "global",
                the norm of all, which takes a second forward and backward pass; "running", an
                estimate of it; "value", each element.
            accumulate: Positive int, the number of batches whose mean gradient makes one update;
                batches left at the end of the fit wait for the next one.
            steps_per_epoch: Positive int, the batches of an epoch; None for all, which endless
                sources do not have.
            drop_last: Whether to drop a last batch of arrays that is smaller than ``batch_size``.
            verbose: Whether to print a progress line for each epoch on standard error.
            memory_budget: The most memory of a step: bytes, or a text such as "600MB". Steps then
                run as `plan` finds. None for no bound.
            allow: The ways to save memory that a budget may use: "recompute", "micro-batches",
                "light state" and "offload".
            offload_folder: Path of a folder to which the net is offloaded if no other way is
                enough; it stays offloaded after the fit. None for no offloading.
        """
        if options.within_budget:
            from singanet.budget import fit_within

            return fit_within(self, options)
        from singanet.training.fit import fit

        return fit(self, options)

    @checked_call
    def find_lr(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        low: float = 1e-6,
        high: float = 10.0,
        steps: int = 100,
    ) -> RateRange:
        """Try learning rates from ``low`` to ``high``: the range test of Smith (2017).

        The compiled net trains for ``steps`` steps, and the rate grows by the same factor each
        step. The test stops early if the loss rises far above its start. The training's state is
        copied first and restored exactly, also after an error. Errors: a net that is not compiled;
        rates that do not rise; an iterator, whose batches would be lost; an optimizer without a
        rate; several processes.

        Args:
            x: The samples, as for `fit`; a loader is read from its next batch.
            y: The targets, as for `fit`.
            batch_size: Positive int, the samples of a step if ``x`` are samples.
            low: Positive number, the first rate.
            high: Number above ``low``, the last rate.
            steps: Int from 10 on, the number of rates.
        """
        from singanet.training.rate_range import find_lr

        return find_lr(self, x, y, batch_size, low, high, steps)

    @checked_call
    def evaluate(
        self, x: Any, y: Any = None, batch_size: int | None = 32, sample_weight: Array | None = None
    ) -> Evaluation:
        """Return ``(loss, metric)`` without training; None for a loss or metric that is not set.

        The result's ``.logs`` has all measures by name: the loss, the losses of several outputs,
        and every compiled metric. They cover all samples together. A custom metric that only judges
        single batches gets all samples at once.

        Args:
            x: The samples, as for `fit`; without ``y`` a loader or another iterable of batches
                ``(x, y)`` or ``(x, y, sample_weight)``.
            y: The targets, as for `fit`.
            batch_size: Positive int, the samples that are computed at a time; None for all at once.
            sample_weight: Array of the samples' weights, as for `fit`; None for 1.
        """
        from singanet.training.evaluation import evaluate

        return evaluate(self, x, y, batch_size, sample_weight)

    @overload
    def predict(self, x: Any, batch_size: int | None = 32) -> Array: ...

    @overload
    def predict(
        self, x: Any, batch_size: int | None = 32, *, by_name: Literal[True]
    ) -> dict[str, Array]: ...

    @checked_call
    def predict(
        self, x: Any, batch_size: int | None = 32, *, by_name: bool = False
    ) -> Array | dict[str, Array]:
        """Return the net's output for ``x``, after the link of the loss: softmax, sigmoid or none.

        The result is an array, or for several outputs a dict by output name.

        Args:
            x: The samples, as for `fit`, or a loader or another iterable of batches ``x`` or ``(x,
                ...)``.
            batch_size: Positive int, the samples that are computed at a time; None for all at once,
                which a net needs if samples affect each other.
            by_name: Whether to return a dict for one output too, so that type checkers know the
                type.
        """
        from singanet.training.evaluation import by_output_name, predict

        made = predict(self, x, batch_size)
        return by_output_name(made, self) if by_name else made

    @checked_call
    def predictor(self) -> Predictor:
        """Return an object that predicts with a copy of the current parameters.

        It stores constants in the layouts of the kernels, folds batch normalisations into
        convolutions, fuses the following operations into one kernel and includes the link of the
        loss. Predictions differ from `predict` by rounding, about 1e-6 of the largest. It shares
        nothing with the net. Errors: layers that cannot be copied; a subclass's own `forward` or
        `predict`; on a device, when called, layers that cannot be recorded.
        """
        from singanet.saving.predictor import Predictor

        return Predictor.of(self)

    @checked_call
    def train_on_batch(self, x: Any, y: Any, sample_weight: Array | None = None) -> dict[str, Any]:
        """Run one streaming step with the compiled optimizer; return loss and metrics before it.

        ``x``, ``y`` and ``sample_weight`` are the arrays of one batch, as for `fit`. The result is
        a dict by name.
        """
        from singanet.training.evaluation import train_on_batch

        return train_on_batch(self, x, y, sample_weight)

    @checked_call
    def test_on_batch(self, x: Any, y: Any, sample_weight: Array | None = None) -> dict[str, Any]:
        """Return the loss and the compiled metrics of a batch by name, without training.

        ``x``, ``y`` and ``sample_weight`` are the arrays of one batch, as for `fit`.
        """
        from singanet.training.evaluation import test_on_batch

        return test_on_batch(self, x, y, sample_weight)

    @checked_call
    def gradients(
        self,
        ys: Names,
        xs: N | Sequence[N],
        feed: Any,
        dys: Any = None,
        train: bool = False,
        unreachable: str = "error",
    ) -> dict[N, Array]:
        """Return the gradients of ``ys`` by each of ``xs``, by their names.

        Only layers between xs and ys run. The caller owns every array. Errors: unknown names;
        integer arrays; no path from an x to ys; a wrong shape. The guide:
        https://github.com/singanet/singanet/blob/main/docs/gradients.md.

        Args:
            ys: Name of a layer, ``(layer, index)`` for one of several outputs, or "loss"; or a list
                of these.
            xs: Name, or list of names, of layers (their outputs), inputs and parameters. An input
                has the name of its `Input`; the input of another layer is ``"<layer>/input"``, or
                ``"input"`` if the net has one input.
            feed: The inputs, an array or a dict by name; for "loss" a dict that also has "targets",
                and may have "sample_weight".
            dys: The initial gradients by y, or an array for one y; None for ones.
            train: Whether to run a training forward.
            unreachable: "error", or "zeros" to return zeros for an x that does not affect ys.
        """
        from singanet.gradients import gradients

        return gradients(self, ys, xs, feed, dys, train, unreachable)

    @checked_call
    def iter_gradients(
        self,
        ys: Names,
        xs: Names,
        feed: Any,
        dys: Any = None,
        train: bool = False,
        unreachable: str = "error",
    ) -> Iterator[LayerGradients]:
        """Yield the gradients of `gradients` layer by layer from the last, as `backward` does.

        An item has a layer's parameters among ``xs`` in ``names, values, grads``, and the gradients
        of its outputs and inputs, by their names in ``xs``, in ``output_grads``. A table's gradient
        is `RowSparse`. Values may be updated in place. ``ys``, ``feed``, ``dys``, ``train`` and
        ``unreachable`` are as for `gradients`.
        """
        from singanet.gradients import iter_gradients

        return iter_gradients(self, ys, xs, feed, dys, train, unreachable)

    @checked_call
    def jacobian(
        self, ys: Y | Sequence[Y], xs: N | Sequence[N], feed: Any
    ) -> dict[Y, dict[N, Array]]:
        """Return the gradient of every element of each y by each x, in evaluation: ``[y][x]``.

        Its shape is y's shape followed by x's, both with the batch axis. It takes a forward and a
        backward pass for every element of y. ``ys``, ``xs`` and ``feed`` are as for `gradients`.
        Errors: as for `gradients`; a y of several arrays.
        """
        from singanet.gradients import jacobian

        return jacobian(self, ys, xs, feed)

    @checked_call
    def hessian_vector_product(
        self, ys: Names, xs: N | Sequence[N], feed: Any, vectors: Directions, dys: Any = None
    ) -> dict[N, Array]:
        """Return the derivative of the gradients of ``ys`` by ``xs`` along ``vectors``.

        ``vectors`` are directions by name, of anything that ``xs`` accepts, in ``xs`` or not; other
        arrays are constant. ``feed`` and ``dys`` are as for `gradients`. The derivative is exact:
        forward and backward, in evaluation, carry tangents in float64, on the net's device. Errors:
        as for `gradients`; a vector of another shape; layers and losses that cannot be recorded.
        """
        from singanet.gradients import hessian_vector_product

        return hessian_vector_product(self, ys, xs, feed, vectors, dys)

    @checked_call
    def summary(
        self,
        batch_size: int | None = None,
        extent: int | None = None,
        fold: bool = True,
        width: int | None = None,
    ) -> Shown:
        """Return a table of the layers: output shapes, parameters, multiply-adds, sources; totals.

        A notebook shows it as a table. The layers of a net that is not built are shown without
        shapes. Errors: arguments that are not positive ints; no ``extent`` if an input needs it.

        Args:
            batch_size: Positive int, the samples of a training step whose peak memory is added,
                with the bytes a sample that each layer stores for backward; None for neither.
                Recorded steps tell them, which leave the net unchanged.
            extent: Positive int that replaces axes of any extent in these steps.
            fold: Whether equal blocks of a net of more than 30 layers are one.
            width: Columns of the text, whose cells are shortened to fit; 0 for as many as
                necessary; None for those of the terminal.
        """
        from singanet.summary import summary_table

        sizes = {"batch_size": batch_size, "extent": extent}
        for name, size in sizes.items():
            sizes[name] = None if size is None else checked_count("net.summary", name, size, 1)
        if width is not None:
            width = checked_count("net.summary", "width", width, 0)
        planned = None if batch_size is None else self.memory(batch_size, extent=extent)
        return summary_table(self, **sizes, planned=planned, fold=fold, width=width)

    @checked_call
    def plot(self, path: str | PathLike[str] | None = None, fold: bool = True) -> Shown:
        """Draw the graph as SVG, and return its text.

        Layers are below their sources, with kernel, stride, activation, shapes and parameter
        counts. Errors: another suffix; `FileAccessError`; `BackendError` for .png without the extra
        ``report``.

        Args:
            path: Path of a .svg or .png file to write as well; None for none.
            fold: Whether equal blocks of a net of more than 30 layers are one.
        """
        from singanet.picture import plot_net

        return plot_net(self, path, fold)

    def _repr_html_(self) -> str:
        """Return the table and the picture, for notebooks."""
        from singanet.picture import net_html

        return net_html(self)

    @checked_call
    def to_config(self) -> dict[str, Any]:
        """Return the net's structure, loss and metric as JSON types, without parameter values.

        Errors: `ConfigError` for a class that is neither singanet's nor registered.
        """
        from singanet.saving.nets import net_to_config

        return net_to_config(self)

    @classmethod
    @entry_point
    def from_config(cls, config: Mapping[str, Any], seed: int | None = None) -> FeedForwardNet:
        """Build the net that `to_config` described, with fresh parameters.

        Its classes are singanet's or registered. Errors: `ConfigError`, `UnknownNameError`.

        Args:
            config: The result of `to_config`.
            seed: Int from 0 on, the seed of the net; None as for the constructor.
        """
        from singanet.saving.nets import net_from_config

        return net_from_config(cls, config, seed)

    @checked_call
    def save_model(self, f: str | PathLike[str], training: bool = True) -> None:
        """Write the whole net to one file, from which `singanet.load_model` builds it again.

        It is written atomically, one array at a time. Errors: `ConfigError` for a class that is
        neither singanet's nor registered; `ArgumentError` for a suffix of another format;
        `FileAccessError`.

        Args:
            f: Path of the file, ``name.singanet``.
            training: Whether the file includes the settings of `compile`: optimizer with its state,
                metrics, mixed precision.
        """
        from singanet.saving.whole_model import save_model

        save_model(self, f, training)

    @checked_call
    def set_params(self, values: Mapping[str, Any]) -> None:
        """Copy ``values`` to the parameters of their names; the others stay as they are.

        ``values`` are arrays of any library, by name. Errors, before anything changes:
        `UnknownNameError` for another name, `ShapeError` for another shape, `DataError` if they are
        no numbers.
        """
        from singanet.saving.parameters import set_params

        set_params(self, values)

    @checked_call
    def save(
        self,
        f: str | PathLike[str],
        buffer_size: int = 10,
        use_pickle: bool = False,
        format: str | None = None,
        *,
        data_format: str = "channels_last",
        optimizer: Optimizer | None = None,
        layout: str | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Write all parameters, running state included, to ``f``, atomically.

        Snapshots and pickles store a recurrent layer's weights as one array. Errors:
        `FileAccessError`; arrays that the format cannot store; the suffix of another program's
        files.

        Args:
            f: Path of the file.
            buffer_size: Unused, an argument of SINGA; a SINGA that reads the records needs a buffer
                above the largest.
            use_pickle: Whether None as ``format`` means "pickle".
            format: "snapshot", "pickle", "hdf5", "npz", "safetensors", "keras" or "keras-legacy".
                None for the format of the suffix; without a suffix SINGA's snapshot, ``f.bin`` and
                ``f.desc``.
            data_format: The data format of the Keras model that will load the file: "channels_last"
                or "channels_first".
            optimizer: The optimizer whose state a Keras file includes; None for no state.
            layout: "torch" to write a '.safetensors' file for PyTorch's ``load_state_dict``: a
                layer becomes the module of its name, with dots for slashes. None for the net's own
                names.
            rename: Dict of the modules' names in that file by layer name.
        """
        from singanet.saving.parameters import save_parameters

        format = format or ("pickle" if use_pickle else None)
        save_parameters(self, f, format, data_format, optimizer, layout, rename)

    @checked_call
    def load(
        self,
        f: str | PathLike[str],
        buffer_size: int = 10,
        use_pickle: bool = False,
        format: str | None = None,
        *,
        rename: Mapping[str, str] | None = None,
        strict: bool = True,
        cast: bool = False,
        data_format: str = "channels_last",
        optimizer: Optimizer | None = None,
        layout: str | None = None,
        key: str | None = None,
        by_order: bool = False,
    ) -> LoadReport:
        """Read parameters from ``f`` into the net's arrays, and report how each was matched.

        The file's content decides its format, not its name. Files of Keras and of every SINGA since
        1.0.0 are read too. The whole file is checked first: on an error the net is unchanged.
        Errors: `StateMismatchError`, whose ``report`` is a table of both sides, `FileFormatError`,
        `ChecksumError`, `VersionError`, `FileAccessError`.

        Args:
            f: Path of the file; of a snapshot without its suffix; or of the folder of an offloaded
                net or a published model.
            buffer_size: Unused, an argument of SINGA.
            use_pickle: Whether None as ``format`` means "pickle".
            format: The format of the file, as for `save`; None recognizes it by the content.
            rename: Dict from names in the file to names in the net.
            strict: Whether to refuse missing, extra and unfitting arrays; otherwise they are
                reported.
            cast: Whether to convert arrays of other types.
            data_format: The data format of the Keras model that wrote the file: "channels_last" or
                "channels_first".
            optimizer: The optimizer that takes the state in a Keras file; None to skip it.
            layout: "torch" for a state dict of PyTorch, the default for '.pt' files: modules match
                by name, by ``rename``, by a unique shape or by the numbers in their names; matrices
                are transposed. "singanet" for the net's own names. It is required if ``rename``
                maps a name with dots to a square matrix.
            key: The entry of a training checkpoint of PyTorch that contains the weights.
            by_order: Whether modules of PyTorch that nothing else matches are matched by their
                order.
        """
        from singanet.saving.parameters import LoadRules, load_parameters

        rules = LoadRules(rename, strict, cast, layout, key, by_order)
        format = format or ("pickle" if use_pickle else None)
        return load_parameters(self, f, format, rules, data_format, optimizer)

    @checked_call
    def offload(
        self,
        folder: str | PathLike[str],
        keep: int | str = "256MB",
        *,
        activations: bool = False,
        optimizer: Optimizer | Wrapper | None = None,
        resume: bool = False,
    ) -> None:
        """Store parameters and optimizer state in ``folder``, and at most ``keep`` bytes in memory.

        The arrays of a layer are read ahead and written back while its neighbours compute; results
        are bit-identical. After every step the folder is a checkpoint, which `load` reads. Errors:
        `FileAccessError` for a folder that is read-only, in use, full or has other files; a
        ``keep`` too small for a layer; files of another net (`StateMismatchError`) or optimizer
        (`DataError`). On an error net and folder are unchanged. The guide:
        https://github.com/singanet/singanet/blob/main/docs/offload.md.

        Args:
            folder: Path of a new or empty folder, or with ``resume`` of an earlier process's
                folder.
            keep: The most memory for the arrays: bytes, or a text such as "256MB".
            activations: Whether to offload the arrays that layers store for backward too, and to
                count them in ``keep``.
            optimizer: The optimizer whose state is stored; None for the compiled one, or else the
                one passed to `step`.
            resume: Whether to continue from the files in ``folder``.
        """
        from singanet.offload import offload

        offload(self, folder, keep, optimizer, resume, activations)

    @checked_call
    def onload(self) -> None:
        """Load an offloaded net into memory; the folder stays. Errors: a net that is in memory."""
        from singanet.offload import onload

        onload(self)

    @checked_call
    def decoder(
        self, max_length: int | None = None, fixed: Mapping[str, Any] | None = None, spare: int = 0
    ) -> Decoder:
        """Return an object that reads sequences in parts and caches the layers' earlier steps.

        ``decoder(x)`` returns `predict` of the whole sequences at the steps ``x``. Sequences may
        differ in length, be copied and roll back; see `Decoder`. Errors: a net whose outputs for
        parts differ from those for the whole.

        Args:
            max_length: Positive int, the most steps of a sequence; None for the net's own maximum.
            fixed: Dict of the inputs without steps, by name.
            spare: Int from 0 on, the steps by which sequences can roll back if sliding windows drop
                older ones.
        """
        from singanet.decoding import Decoder

        return Decoder(self, max_length, fixed, spare)

    @checked_call
    def generate(
        self,
        prompts: Any,
        length: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: int | str | Sequence[int | str | Sequence[int]] | None = None,
        max_length: int | None = None,
        *,
        draft: FeedForwardNet | DraftModel | None = None,
        prefix: Decoder | None = None,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int | None = None,
        bad_words: int | str | Sequence[int | str | Sequence[int]] | None = None,
        logits: ScoreFunction | None = None,
        guide: str | Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> list[Array]:
        """Continue each of ``prompts``; return the new ids of each, (T,).

        A `decoder` caches earlier steps. The same ``seed`` and prompts give the same ids, and
        prompts do not affect each other. `decoding.generate` also returns the ids' probabilities.
        Errors: a net whose output is not probabilities (N, T, C); a draft of another vocabulary;
        the errors of `decoder`.

        Args:
            prompts: Array (N, P) of ids, or N arrays of ids of any length.
            length: Positive int, the most ids to draw for a prompt.
            temperature: Number from 0 on: ids are drawn by the net's probabilities to the power of
                1 / ``temperature``; 0 takes the likeliest.
            top_k: Positive int, the number of likeliest ids to draw from; None for all.
            top_p: Number in (0, 1], the probability of the likeliest ids to draw from; None for 1.
            seed: Int from 0 on, the seed of the draws; None takes one as the constructor does. Beam
                searches and temperature 0 draw nothing.
            stop: An id, or a list of ids and of sequences of ids, after which a row ends; a text,
                or several in the list, before which a row ends. None for none.
            max_length: Positive int, the most steps that the decoder caches; past it the last half
                is read again. None for the net's own maximum.
            draft: A smaller net of the same vocabulary, or a `DraftModel`, that proposes ids for
                this net to verify; the distribution of the ids is the same.
            prefix: A `decoder` of this net that has read one sequence, which precedes each prompt.
            num_beams: Positive int. Above 1, a beam search of so many continuations replaces the
                draws: the ids of the best, as transformers finds it.
            length_penalty: Number: the score of a beam is divided by its number of ids to this
                power.
            min_p: Number in (0, 1]: ids of less than this times the largest probability are not
                drawn. None for all.
            repetition_penalty: Positive number: scores of earlier ids, prompt included, are divided
                by it, or multiplied if negative. 1 for none.
            no_repeat_ngram_size: Positive int: no run of this many ids occurs twice. None for any.
            bad_words: An id, a text, or a list of ids, runs of ids and texts that are not written.
                A text counts with and without a space before it.
            logits: A function of the ids (T,) of a text, prompt included, and the scores (C,) of
                its next id; it returns changed scores.
            guide: A regular expression, or a dict with a JSON schema, that the new text matches;
                the row ends there, with the tokenizer's end id. It needs the extra ``guide``.
            tokenizer: The `Tokenizer` of texts and ``guide``; None for the tokenizer of the folder
                from which the net was loaded.
            inputs: Dict by name of the further inputs (N, ...), a row for each prompt.
        """
        from singanet.data import Tokenizer
        from singanet.decoding import BeamSearch, Processors, Sampling, generate

        if not isinstance(tokenizer, (Tokenizer, type(None))):
            raise ArgumentError(
                "net.generate, argument tokenizer",
                expected="a Tokenizer of singanet, or None",
                received=brief(tokenizer)[:80],
                advice="pass tokenizer=singanet.pretrained.tokenizer(folder)",
            )
        words = self._tokenizer if tokenizer is None else tokenizer
        changes = repetition_penalty, no_repeat_ngram_size, bad_words, logits, guide
        places = self._places(length)
        made = generate(
            self,
            prompts,
            length,
            Sampling(temperature, top_k, top_p, min_p),
            seed,
            stop,
            max_length,
            draft=draft,
            prefix=prefix,
            processors=Processors._of(
                *changes,
                tokenizer=words,
                forced=places.get("forced"),
                excluded=places.get("excluded"),
            ),
            beams=BeamSearch._of(num_beams, length_penalty),
            tokenizer=words,
            inputs=inputs,
            encoder=self._encoder(),
        )
        return [each.ids for each in made]

    def _encoder(self) -> tuple[str, int, str | None] | None:
        """Return the input of an encoder that reads prompts, the id of a start, and the mask."""
        return None

    def _places(self, length: int) -> dict[str, Any]:
        """Return the "forced" and "excluded" ids of `generate` by place among ``length`` ids."""
        return {}

    def _tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the files from which the net was loaded."""
        return None

    @checked_call
    def record(
        self,
        x: Any,
        y: Any = None,
        optimizer: Optimizer | Wrapper | None = None,
        *,
        rerecord: bool = False,
        recompute: Recompute | None = None,
    ) -> Program:
        """Record a training step, or without ``y`` and ``optimizer`` an evaluation, as a program.

        Net and optimizer do not change. Results are bit-identical. Errors: targets without an
        optimizer or the reverse; an arena that cannot fit the bytes; the errors of the net.

        Args:
            x: The inputs of a batch, as for `forward`; they define the shapes.
            y: The targets of the batch.
            optimizer: The optimizer of the step.
            rerecord: Whether the program records again for other shapes and after changes of the
                net; otherwise it refuses them.
            recompute: The arrays that a step drops after forward and computes again for backward:
                "none"; "cheap", memory-bound operations if that lowers the peak; "blocks", all but
                the arrays between blocks; or a number of bytes for the arena, which may repeat
                products and convolutions too. None for `programs.recompute`.
        """
        from singanet.program.program import Program

        return Program(self, x, y, optimizer, rerecord=rerecord, recompute=recompute)

    @checked_call
    def memory(
        self,
        batch_size: int,
        optimizer: Optimizer | Wrapper | None = None,
        extent: int | None = None,
        *,
        recompute: Recompute | None = None,
    ) -> PeakMemory:
        """Return the planned bytes of a recorded training step of ``batch_size`` samples.

        A rehearsal on ones finds them and leaves the net unchanged; the loss's own arrays are not
        counted. Errors: numbers that are not positive ints; an arena that cannot fit the bytes.

        Args:
            batch_size: Positive int, the samples of the step.
            optimizer: The optimizer whose state counts; None for the compiled one.
            extent: Positive int that replaces axes of any extent.
            recompute: As for `record`.
        """
        from singanet.program.memory import planned_memory
        from singanet.training.compiled import alone

        return planned_memory(self, batch_size, alone(self, optimizer), extent, recompute)

    @checked_call
    def plan(
        self,
        batch_size: int,
        optimizer: Optimizer | Wrapper | None = None,
        memory_budget: int | str | None = None,
        extent: int | None = None,
        *,
        allow: Collection[str] = USUAL,
        ranks: int = 1,
    ) -> MemoryPlan:
        """Find the fastest way to run steps of ``batch_size`` samples within ``memory_budget``.

        Nothing runs, and the net is unchanged. Errors: a budget that is too small, with the
        smallest that works and how; numbers that are not positive ints; a net that is offloaded or
        cannot be recorded.

        Args:
            batch_size: Positive int, the samples of a step.
            optimizer: The optimizer whose state counts; None for the compiled one.
            memory_budget: The most memory of a step: bytes, or a text such as "600MB". None lists
                every way.
            extent: Positive int that replaces axes of any extent.
            allow: The ways to try, in this order, after the unchanged step: "recompute",
                "micro-batches", "light state" (other losses: an Adam becomes a `FactoredAdam`),
                "offload".
            ranks: Positive int, the number of processes that train by `parallel.Sharded`; each has
                the budget.
        """
        from singanet.budget import of_one_rank, plan_memory
        from singanet.training.compiled import alone

        optimizer = alone(self, optimizer)
        beside = of_one_rank(self, optimizer, ranks)
        return plan_memory(self, batch_size, optimizer, memory_budget, extent, allow, beside)

    @checked_call
    def tune_kernels(
        self, batch_size: int, extent: int | None = None, *, again: bool = False
    ) -> TuningReport:
        """Measure the fastest kernel of each convolution of a batch, and use it from now on.

        A training step and a prediction of a `predictor` are rehearsed on ones, which leaves the
        net unchanged. Each different convolution then runs alone by the routes that estimates do
        not rule out. The choices are stored for later processes in the file ``SINGANET_ROUTES``, or
        in the user's cache folder. Last bits may differ afterwards. Errors: a ``batch_size`` or
        ``extent`` that is not a positive int; kernels other than oneDNN's, such as a device's; a
        file that cannot be written.

        Args:
            batch_size: Positive int, the samples of the batch.
            extent: Positive int that replaces axes of any extent.
            again: Whether to measure cases that the file has already.
        """
        from singanet.program.tuning import tune_kernels

        return tune_kernels(self, batch_size, extent, again)


@checked_call
def load_model(path: str | PathLike[str], training: bool = True) -> FeedForwardNet:
    """Build the net that `FeedForwardNet.save_model` wrote to ``path``, without its code.

    It predicts and continues training exactly as the saved net. Classes are singanet's own and
    those given to `singanet.register`; no code in the file runs. Errors: `UnknownNameError` for
    another class; `ConfigError`; `FileFormatError`; `StateMismatchError`; `ChecksumError`;
    `VersionError`.

    Args:
        path: Path of the file.
        training: Whether to read the optimizer, its state and the metrics too.
    """
    from singanet.saving.whole_model import read_model

    return read_model(FeedForwardNet, path, training)
