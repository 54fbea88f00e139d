"""FeedForwardNet: a directed acyclic graph of layers, trained layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import checked_call, made_of
from singanet.base.elsewhere import missing_attribute
from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.program.programs import Programs, programs_of
from singanet.training.options import USUAL, FitOptions

if TYPE_CHECKING:
    from os import PathLike

    from singanet.budget import MemoryPlan
    from singanet.checkpoint import LoadReport
    from singanet.decoding import Decoder, Drafter
    from singanet.engine.peak_memory import PeakMemory
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
    """A net of layers, sorted topologically, with a backward that hands gradients out.

    ``FeedForwardNet([layer, ...], loss=..., metric=...)`` is a chain; nets with a name may stand
    among the layers. ``FeedForwardNet(loss, metric)`` is empty, to be built with `add`; with
    ``inputs`` and ``outputs`` it is what was drawn with symbols. ``loss`` and ``metric`` serve
    `train`, `step`, `evaluate` and `predict`. ``name`` is needed to nest the net in another.
    ``seed`` fixes the initial parameters and every random draw; None takes the next one after
    `singanet.set_seed`, or a fresh one. Errors: arguments of other kinds, and those of `add`.

    What a net consists of and how it runs is in `Net`. Here stand the services around it, each
    imported when it is first called.
    """

    if not TYPE_CHECKING:  # else type checkers accept any name
        __getattr__ = missing_attribute

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, with this net's state in the compiled optimizer."""
        if self.compiled is not None:
            from singanet.training.compiled import expect_compiled

            expect_compiled(self, "net").turn(self)
        return vars(self)

    def make_executor(self) -> Programs:
        """Passes and steps run as recorded programs where a call comes again."""
        return Programs()

    @property
    def programs(self) -> Programs:
        """The recorded programs of the net, with what is said of recording.

        Errors: `CallOrderError` for a net that is offloaded, or on several ranks.
        """
        return programs_of(self)

    # -- parts ------------------------------------------------------------------------------

    @checked_call
    def upto(self, *layers: Layer | str, seed: int | None = None) -> FeedForwardNet:
        """The part of the net that ``layers`` need, which are its outputs; to be given a new head.

        Both nets share the layers: training one trains the other. What is added goes behind the
        last of ``layers``. Loss, metric, optimizer and `freeze` are not taken along; ``seed`` is
        for what is added. Errors: an unknown layer, or none; a net that is offloaded.
        """
        from singanet.graph.building import add_upto

        self._execution_plan()  # filled by this net's own seed, as far as it is not yet
        made = FeedForwardNet(seed=seed)
        made.device, made.dtype = self.device, self.dtype
        add_upto(made, self, [each if isinstance(each, str) else each.name for each in layers])
        return made

    # -- fewer bits -------------------------------------------------------------------------

    @checked_call
    def as_type(self, dtype: Any, rounding: str | None = None) -> None:
        """Convert every parameter, and compute in this float type from now on.

        "bfloat16" holds the matrices that layers multiply by, and tables, in two bytes a number,
        and computes in float32; kernels may round rows that they multiply by such. Updates change a
        float32 array of one layer at a time, which is then rounded: by ``rounding``
        "stochastic", the default, up or down at random with draws of ``net.rng``, or "remainder",
        which keeps the lower half too, so that updates are those of float32. Other parameters stay
        float32. "float32_fast" is float32 in all arrays, with convolutions and products that round
        what they multiply to bfloat16. Errors: `ArgumentError` for no float type, `BackendError`
        for "float32_fast" where the kernels or the processor have no such products; for "bfloat16"
        `CallOrderError` for a net that is offloaded, on several ranks or nested.
        """
        from singanet.engine.holding import hold_words, let_go

        if isinstance(dtype, str) and dtype == "bfloat16":
            if self.dtype != np.float32:
                self.as_type("float32")
            hold_words(self, rounding)
            return
        if rounding is not None:
            raise ArgumentError(
                "net.as_type, rounding",
                expected="None, but with 'bfloat16'",
                received=f"{rounding!r} with {dtype!r}",
                advice="leave it out",
            )
        let_go(self)
        super().as_type(dtype)

    @checked_call
    def quantize(
        self,
        dtype: str,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        data: Any = None,
    ) -> Quantization:
        """Hold matrices and tables in blocks of whole numbers of "int8" or "int4", to predict.

        Of each output 32 neighbouring inputs have a float16 scale, with "int4" a minimum too: the
        blocks Q8_0 and Q4_1 of llama.cpp, about 1.06 and 0.63 bytes a number. Tables of words are
        of 8 bits in each case. Other parameters, and matrices whose inputs are no multiple of 32,
        stay as they are. What is computed is float32; kernels may round few rows to whole numbers,
        by blocks too.

        Scales and minima of "int4" are those of the least squared error. ``data``, inputs of some
        rows of the kind that the net will see, let the errors of each input be made good by the
        others (GPTQ, Frantar et al. 2022); that takes up to 256 MB meanwhile, or a matrix'.

        The net then predicts and decodes. Its blocks are not trained: a step is refused, but for
        pairs that `adapt` puts beside them. ``as_type("float32")`` makes arrays of them again.
        Returned is what it cost, with the loss of ``x`` and ``y`` (as for `evaluate`) before and
        after, where they are given. Errors: another type; as for ``as_type("bfloat16")``.
        """
        from singanet.training.evaluation import quantize

        return quantize(self, dtype, x, y, batch_size, data)

    # -- low-rank pairs ---------------------------------------------------------------------

    @checked_call
    def adapt(
        self,
        lora: int,
        where: str | Sequence[str] = "attention",
        alpha: float | None = None,
        dropout: float = 0.0,
    ) -> list[str]:
        """Freeze the net, and put pairs of rank ``lora`` beside weights, to be trained instead.

        A weight W (in, out) then gives x W + (alpha / lora) (x A) B, where A (in, lora) is drawn
        and B (lora, out) zero, so that outputs begin as they were (Hu et al. 2021). ``where`` is
        "attention" for the projections of all attention layers, "all" for every weight of these,
        of `GatedUnit` and of `Dense`, or names and patterns ("layers/*/unit", "*/query_weight") of
        layers or weights, one or several. Weights that several layers have, that read sparse
        inputs or are in a nested net are left out. ``alpha`` is ``lora`` by default; ``dropout`` is
        the probability of dropping what a pair reads, in training.

        The pairs are parameters of their layers, called ``<layer>/<weight>.lora_a`` and
        ``.lora_b``; running state is held. Returned are the names of the weights. Errors: a rank
        above that of a weight, a name that means none; a net that has pairs, that is offloaded,
        nested in another or an Executor's.
        """
        from singanet.engine.adapting import adapt

        return adapt(self, lora, where, alpha, dropout)

    @checked_call
    def merge(self) -> list[str]:
        """Add the pairs that `adapt` made into their weights, and take them away.

        W becomes W + (alpha / lora) A B, computed in float32 (or a wider type of W) and rounded
        once to the type of W: outputs are the same up to rounding. Everything stays frozen; what
        is to be trained needs ``net.trainable = True``. Returned are the names of the weights.
        Errors: a net without pairs, one that is offloaded or nested in another, a weight that is
        read-only or has come to be shared; the net is then as it was.
        """
        from singanet.engine.adapting import merge

        return merge(self)

    # -- training ---------------------------------------------------------------------------

    @checked_call
    def compile(
        self,
        optimizer: Optimizer | Wrapper | str,
        loss: Loss | MultiLoss | str | None = None,
        metrics: Given | None = None,
        mixed_precision: MixedPrecision | str | None = None,
        weighted_metrics: Given | None = None,
    ) -> None:
        """Say what `fit` trains with; None keeps the net's own loss and metric.

        Each may be an object or its name: "adam", "mse", "accuracy". A metric is called after its
        class (``accuracy``), or by its key in a dict; the first becomes the net's metric. For a
        net with several outputs the keys are names of output layers, each with one metric or a
        list of them, which are called ``<output>_accuracy``.
        ``weighted_metrics`` are metrics that the weights of samples and classes count in.
        ``mixed_precision`` "float16", or a `MixedPrecision`, turns the net to that type.
        "float32_fast" leaves it float32, and lets convolutions, products and recurrent kernels
        round what they multiply to bfloat16 and sum in float32, on processors that have such
        products; with "bfloat16" recorded steps also keep in that type what only oneDNN's kernels
        touch. "auto" is this where it can be. `as_type` turns back. Errors: anything
        that is no optimizer, loss or metric, `BackendError` for a precision that is not there; the
        net is then as it was.
        """
        from singanet.training.compiled import compile_net

        compile_net(self, optimizer, loss, metrics, mixed_precision, weighted_metrics)

    @made_of(FitOptions)
    def fit(self, options: FitOptions) -> History:
        """Train for ``epochs`` epochs in all, the streaming backward underneath.

        With a ``memory_budget``, bytes or a text such as "600MB", steps are carried out as `plan`
        finds; a budget that cannot be kept is refused before the first step. Where nothing else
        is enough, the net is offloaded to an ``offload_folder``, and stays there. The guides on
        every argument, and on budgets:
        https://github.com/singanet/singanet/blob/main/docs/training.md
        https://github.com/singanet/singanet/blob/main/docs/memory.md
        Errors, before the first step: an argument out of range; a net that was not compiled, data
        that do not fit together or leave nothing to train on, what callbacks refuse. Later: targets
        that do not fit, data that end early, and whatever the data or a callback raise, with its
        own traceback; callbacks see it in ``on_error`` first.
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
        """Try learning rates from ``low`` to ``high``, as Smith's range test (2017) does.

        The compiled net trains for so many ``steps``, each by a rate that is the same factor
        larger; it ends early where the loss rises far above what it was. Parameters, optimizer,
        generator and the position of a loader are afterwards as they were, to the bit, also after
        an error. ``x`` and ``y`` are as for `fit`, and the batches those that come next. Takes
        memory for a copy of the training's state. Errors: a net that was not compiled; rates that
        do not rise; fewer than 10 steps; an iterator, whose batches would be gone; an optimizer
        without a rate; several processes.
        """
        from singanet.training.rate_range import find_lr

        return find_lr(self, x, y, batch_size, low, high, steps)

    @checked_call
    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = 32,
        sample_weight: Array | None = None,
    ) -> Evaluation:
        """``(loss, metric)`` without training; None for a loss or metric that is not set.

        Its ``.logs`` has all measures by name: the loss, the losses of several outputs, and every
        metric that the net was compiled with. ``batch_size`` samples are computed at a time, with
        None all of them; the measures are those of all samples together. A metric of your own that
        only judges single batches is shown all samples at once. Without ``y``, ``x`` is a loader or
        another iterable of batches ``(x, y)``, or with the weights of samples.
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
        """The net's output for ``x``, through the link of the loss: softmax, sigmoid or none.

        An array; with several outputs a dict by their names, which with ``by_name`` it is of one
        output too, so that type checkers know. ``batch_size`` samples are computed at a time, with
        None all of them, as is right where outputs depend on the other samples. ``x`` may also be a
        loader or another iterable of batches ``x`` or ``(x, ...)``.
        """
        from singanet.training.evaluation import by_output_name, predict

        made = predict(self, x, batch_size)
        return by_output_name(made, self) if by_name else made

    @checked_call
    def predictor(self) -> Predictor:
        """The net's predictions as an object of their own, with the parameters as they are now.

        It lays constants out as the kernels want them, folds batch normalisations into the
        convolutions before them, and lets one kernel do what follows a convolution; the link of
        the loss is part of it. Predictions differ from `predict` by rounding, about 1e-6 of the
        largest. It shares nothing with the net, which goes on training or is let go. Errors:
        layers that cannot be copied, a `forward` or `predict` of a subclass's own; on a device
        layers that cannot be recorded, when it is called.
        """
        from singanet.saving.predictor import Predictor

        return Predictor.of(self)

    @checked_call
    def train_on_batch(self, x: Any, y: Any, sample_weight: Array | None = None) -> dict[str, Any]:
        """One streaming step with the compiled optimizer: loss and metrics from before it."""
        from singanet.training.evaluation import train_on_batch

        return train_on_batch(self, x, y, sample_weight)

    @checked_call
    def test_on_batch(self, x: Any, y: Any, sample_weight: Array | None = None) -> dict[str, Any]:
        """Loss and compiled metrics of a batch, without training."""
        from singanet.training.evaluation import test_on_batch

        return test_on_batch(self, x, y, sample_weight)

    # -- gradients --------------------------------------------------------------------------

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
        """The gradients of ``ys`` by each of ``xs``, by their names.

        ``ys`` are layers, or ``(layer, index)`` for one of several outputs, or "loss", for which
        ``feed`` has "targets", and perhaps "sample_weight", beside the inputs. ``xs`` are layers
        (their outputs), inputs and parameters. An input is called as the `Input` it was drawn
        with; what another layer is fed with is ``"<layer>/input"``, and ``"input"`` where the net
        has one input. ``dys``, by y, are what the gradients start from; None means ones. ``train``
        runs as a training forward does: draws, batch statistics. ``unreachable`` "zeros" gives
        zeros for what no gradient comes to. Only what lies between is run and kept; every array
        is the caller's own. Errors: unknown names; integers; no way from ys to an x; a wrong
        shape. The guide is https://github.com/singanet/singanet/blob/main/docs/gradients.md.
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
        """As `gradients`, layer by layer from the last on, as `backward` yields them.

        An item has a layer's parameters among ``xs`` in ``names, values, grads``, and the gradients
        of its outputs and inputs, by their names in ``xs``, in ``output_grads``. The gradient of a
        table's rows is `RowSparse`. Values may be updated in place.
        """
        from singanet.gradients import iter_gradients

        return iter_gradients(self, ys, xs, feed, dys, train, unreachable)

    @checked_call
    def jacobian(
        self, ys: Y | Sequence[Y], xs: N | Sequence[N], feed: Any
    ) -> dict[Y, dict[N, Array]]:
        """The gradient of every element of each y by each x, in evaluation: ``[y][x]``.

        Its shape is that of y, then that of x, both with the batch axis. It takes a forward and a
        walk back for every element of y. Errors: as for `gradients`; a y of several arrays.
        """
        from singanet.gradients import jacobian

        return jacobian(self, ys, xs, feed)

    @checked_call
    def hessian_vector_product(
        self, ys: Names, xs: N | Sequence[N], feed: Any, vectors: Directions, dys: Any = None
    ) -> dict[N, Array]:
        """How the gradients of ``ys`` by ``xs`` change along ``vectors``, in evaluation.

        ``vectors`` are directions by name, of anything that may stand among ``xs``, even if it does
        not; arrays without one stay as they are. The derivative is exact: tangents are carried
        through the calls of forward and backward, in float64, where the net's arrays are. Errors:
        as for `gradients`; a vector of another shape; layers and losses whose calls cannot be
        recorded.
        """
        from singanet.gradients import hessian_vector_product

        return hessian_vector_product(self, ys, xs, feed, vectors, dys)

    # -- looking ----------------------------------------------------------------------------

    @checked_call
    def summary(self, batch_size: int | None = None, extent: int | None = None) -> str:
        """A table of the layers: output shapes, parameters, multiply-adds, sources; totals.

        With ``batch_size`` also the bytes that each layer keeps for backward, a sample, and the
        peak of a training step of so many samples. These are counted in two training steps of 2
        and 3 samples of ones, which take their time in a large net and leave it as it was.
        ``extent`` stands in for axes of any extent there. Errors: a ``batch_size`` or ``extent``
        that is no positive int, or no ``extent`` where an input needs it.
        """
        from singanet.summary import summary_table

        if batch_size is not None:
            batch_size = checked_count("net.summary", "batch_size", batch_size, 1)
        if extent is not None:
            extent = checked_count("net.summary", "extent", extent, 1)
        planned = None
        if batch_size is not None:
            planned = self.memory(batch_size, extent=extent)
        return summary_table(self, batch_size, extent, planned)

    @checked_call
    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """A picture of the graph as SVG text, also written to ``path``, a .svg or .png file.

        Layers stand below their sources, with shapes and parameter counts, and a note on shared
        parameters. Errors: another suffix, a place that cannot be written to
        (`FileAccessError`), .png without the extra ``report`` (`BackendError`).
        """
        from singanet.picture import plot_net

        return plot_net(self, path)

    def _repr_html_(self) -> str:
        """The table and the picture, for notebooks."""
        from singanet.picture import net_html

        return net_html(self)

    # -- files ------------------------------------------------------------------------------

    @checked_call
    def to_config(self) -> dict[str, Any]:
        """The net's structure, loss and metric as JSON types, without parameter values.

        Errors: `ConfigError` for a class that is neither singanet's nor registered.
        """
        from singanet.saving.nets import net_to_config

        return net_to_config(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], seed: int | None = None) -> FeedForwardNet:
        """The net that `to_config` described, with fresh parameters.

        Only singanet's classes and those given to `singanet.register` are constructed. Errors:
        `ConfigError` and `UnknownNameError` for anything else.
        """
        from singanet.saving.nets import net_from_config

        return net_from_config(cls, config, seed)

    @checked_call
    def save_model(self, f: str | PathLike[str], training: bool = True) -> None:
        """Write the whole net to one file, from which `singanet.load_model` builds it again.

        With ``training`` what `compile` left goes along: optimizer with its state, metrics, mixed
        precision. Call the file ``name.singanet``; it is written whole or not at all, one array
        at a time. Errors: `ConfigError` for a class that is neither singanet's nor registered;
        `ArgumentError` for a suffix of another format; `FileAccessError`.
        """
        from singanet.saving.whole_model import save_model

        save_model(self, f, training)

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
        """Write all parameters, running state included, to ``f``; whole or not at all.

        ``format`` is 'snapshot', 'pickle', 'hdf5', 'npz', 'safetensors', 'keras' or
        'keras-legacy'; None goes by the suffix, and without one writes SINGA's snapshot,
        ``f.bin`` and ``f.desc``; the suffix of another program's files is refused.
        ``data_format`` is that of the Keras model to load it, which takes the state of
        ``optimizer`` as well. ``layout`` "torch" writes what ``load_state_dict`` of PyTorch takes
        from a '.safetensors' file: layers are modules of their names, with dots for slashes, or of
        those that ``rename`` has for them. Snapshots and pickles hold a recurrent layer's weights
        as one array, as SINGA's readers want them.
        ``buffer_size`` is SINGA's, which nothing here needs: records of any size are written, and
        a SINGA that reads them needs one above the largest. Errors: `FileAccessError`, and what
        the format cannot hold.
        """
        from singanet.saving.nets import save_parameters

        name = format or ("pickle" if use_pickle else None)
        save_parameters(
            self,
            f,
            name,
            data_format=data_format,
            optimizer=optimizer,
            layout=layout,
            rename=rename,
        )

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
        """Read parameters from ``f`` into the net's arrays, and report what was matched how.

        The format is that of the file, whatever its name; ``rename`` goes from names in the file
        to names in the net. ``layout`` "torch" says that names and arrays are those of a state dict
        of PyTorch, as in '.pt' files it does by itself: modules are found by name, by ``rename``
        of modules or of what they are in, by shapes that occur once or by the numbers in their
        names, and matrices are turned; ``by_order`` lets the others go by their order. It has to be
        said, or "singanet", where a square matrix is renamed from a name with dots. ``key`` is the
        entry of a training's checkpoint that holds the weights. Files of every SINGA since 1.0.0,
        of Keras, and a training's state are read as well. ``strict`` refuses a file with missing,
        extra or unfitting arrays, ``cast`` converts types, ``optimizer`` takes the state in a Keras
        file. The whole file is checked first: on any error the net is as it was. Errors:
        `StateMismatchError`, whose ``report`` is a table of both sides, `FileFormatError`,
        `ChecksumError`, `VersionError`, `FileAccessError`, a net with read-only arrays.
        """
        from singanet.saving.nets import load_parameters

        return load_parameters(
            self,
            f,
            format or ("pickle" if use_pickle else None),
            rename=rename,
            strict=strict,
            cast=cast,
            data_format=data_format,
            optimizer=optimizer,
            layout=layout,
            key=key,
            by_order=by_order,
        )

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
        """Keep parameters and optimizer state in ``folder``, at most ``keep`` of them in memory.

        The arrays of a layer are read ahead and written back while its neighbours compute; results
        are the same bits. After every step the folder is a checkpoint, which `load` reads;
        ``resume`` goes on from the checkpoint of an earlier process. With ``activations`` the
        arrays that layers keep for backward go to the folder too, and count. ``keep`` is bytes, or
        a text with a unit. The state is that of ``optimizer``, by default the compiled one, or the
        optimizer that `step` gets. On any error net and folder are as they were: a folder that
        holds something else, is read-only, in use or on a full disk (`FileAccessError`); a
        ``keep`` too small for a layer; the files of another net (`StateMismatchError`) or
        optimizer (`DataError`). The guide is https://github.com/singanet/singanet/blob/main/docs/offload.md.
        """
        from singanet.offload import offload

        offload(self, folder, keep, optimizer, resume, activations)

    @checked_call
    def onload(self) -> None:
        """Bring parameters and optimizer state back into memory; the folder stays a checkpoint.

        Errors: a net that is in memory.
        """
        from singanet.offload import onload

        onload(self)

    # -- step by step -----------------------------------------------------------------------

    @checked_call
    def decoder(
        self,
        max_length: int | None = None,
        fixed: Mapping[str, Any] | None = None,
        spare: int = 0,
    ) -> Decoder:
        """An object that takes sequences in parts, and remembers what layers need of earlier steps.

        ``decoder(x)`` is the part of `predict` of the whole sequences at the steps ``x``. It has
        memory for ``max_length`` steps, the net's own number by default; ``fixed`` are inputs
        without steps. Sequences may have different numbers of steps, be copied and go back, up to
        ``spare`` steps where sliding windows let older ones go; see `Decoder`. Errors: a net whose
        outputs for parts differ from those for the whole.
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
        stop: int | Sequence[int | Sequence[int]] | None = None,
        max_length: int | None = None,
        *,
        draft: FeedForwardNet | Drafter | None = None,
        prefix: Decoder | None = None,
    ) -> list[Array]:
        """Go on with each of ``prompts``, an array (N, P) of ids or N arrays of any length.

        The next id is drawn by the net's probabilities to the power of 1 / ``temperature``, at 0
        the likeliest is taken; ``top_k`` and ``top_p`` leave the likeliest alone, as `Sampling`
        says. Each row ends after ``length`` ids, or with the id ``stop``, of several with the first
        of these, each an id or a run of ids. The net remembers what it has read, `decoder`; past
        ``max_length`` steps it reads the last half anew. The same ``seed`` and prompts give the
        same ids. Prompts of different lengths are not padded: each goes on as it would alone.

        A ``draft``, a smaller net of the same vocabulary or a `Drafter` of it, foretells ids that
        this net reads at once and takes or not, so that they are drawn as without. A ``prefix``, a
        `decoder` of this net that has read one sequence, comes before each prompt and is not read
        again. `decoding.generate` tells how probable each id was. Errors: a net whose output is no
        probabilities (N, T, C), and those of `decoder`; a draft of another vocabulary.
        """
        from singanet.decoding import Sampling, generate

        sampling = Sampling(temperature, top_k, top_p)
        drawn = prompts, length, sampling, seed, stop, max_length
        made = generate(self, *drawn, draft=draft, prefix=prefix)
        return [each.ids for each in made]

    # -- programs ---------------------------------------------------------------------------

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
        """A training step, or without ``y`` and ``optimizer`` an evaluation, as a program.

        The batch gives the shapes; net and optimizer are afterwards as they were. With
        ``rerecord`` the program records again for other shapes and after changes of the net, else
        it refuses.

        ``recompute`` is what a step drops after its forward pass and makes again when the backward
        pass needs it: "none"; "cheap", what passes over memory make of what is kept anyway, as far
        as less memory is needed then; "blocks", all but what goes on from block to block; or the
        bytes that the arena may take, for which products and convolutions run again, too. Results
        are the same bits. None means `programs.recompute`.
        Errors: targets without an optimizer or the reverse, bytes that the arena cannot be kept
        in, and what the net refuses.
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
        """The bytes that a recorded training step of ``batch_size`` samples takes, as planned.

        The step is rehearsed on ones, which leaves the net as it was; the loss's own arrays are
        not in it. The state is that of ``optimizer``, by default the compiled one; ``extent``
        stands in for axes of any extent, ``recompute`` is as for `record`. Errors: a ``batch_size``
        or ``extent`` that is no positive int; bytes that the arena cannot be kept in.
        """
        from singanet.program.memory import planned_memory

        return planned_memory(self, batch_size, self._by(optimizer), extent, recompute)

    def _by(self, optimizer: Optimizer | Wrapper | None) -> Optimizer | Wrapper | None:
        """``optimizer``, else the compiled one as a process has it that trains alone."""
        if optimizer is not None or self.compiled is None:
            return optimizer
        from singanet.optimizer.chain import without_reductions
        from singanet.training.compiled import expect_compiled

        return without_reductions(expect_compiled(self, "net").optimizer)

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
        """How steps of ``batch_size`` samples keep within a ``memory_budget``, cheapest in time.

        In this order, as far as ``allow`` names them: as it is, "recompute", "micro-batches",
        "light state" (other losses: an Adam becomes a `FactoredAdam`), "offload". The state is
        that of ``optimizer``, by default the compiled one. The budget is a number of bytes or a
        text such as "600MB"; None looks at every way. With ``ranks`` it is for each of so many
        processes that train by `parallel.Sharded`, of batches of ``batch_size`` each. Nothing is
        run, and the net stays as it is. Errors: a budget that cannot be kept, with the smallest
        that can and how; what is no size; a ``batch_size``, ``extent`` or ``ranks`` that is no
        positive int; a net that is offloaded, or whose steps cannot be recorded.
        """
        from singanet.budget import of_one_rank, plan_memory

        optimizer = self._by(optimizer)
        beside = of_one_rank(self, optimizer, ranks)
        return plan_memory(self, batch_size, optimizer, memory_budget, extent, allow, beside)

    @checked_call
    def tune_kernels(
        self, batch_size: int, extent: int | None = None, *, again: bool = False
    ) -> TuningReport:
        """Measure by which route each convolution of a batch is fastest, and go by it from now on.

        A training step and a prediction of a `predictor` are rehearsed on ones, which leaves the
        net as it was; each different kernel then runs alone by the routes that estimates do not
        rule out. The choices are kept for later processes in the file that
        ``SINGANET_ROUTES`` names, or in the user's cache folder; cases that it holds are not
        measured unless ``again``. Results may differ in the last bits afterwards. ``extent``
        stands in for axes of any extent. Errors: a ``batch_size`` or ``extent`` that is no
        positive int; other kernels than oneDNN's, as those of a device are; a file that cannot be
        written.
        """
        from singanet.program.tuning import tune_kernels

        return tune_kernels(self, batch_size, extent, again)


@checked_call
def load_model(path: str | PathLike[str], training: bool = True) -> FeedForwardNet:
    """The net that `FeedForwardNet.save_model` wrote to ``path``, without its code.

    It predicts and goes on training as the one that was saved, to the bit. ``training=False``
    leaves optimizer and metrics out. Classes come from singanet's own and from those given to
    `singanet.register`; nothing in the file is run, and no array is made before the file is seen
    to hold it. Errors: `UnknownNameError` for another class, `ConfigError`, `FileFormatError`,
    `StateMismatchError`, `ChecksumError`, `VersionError`, `FileAccessError`.
    """
    from singanet.saving.whole_model import read_model

    return read_model(FeedForwardNet, path, training)
