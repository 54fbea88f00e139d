"""FeedForwardNet: a directed acyclic graph of layers, trained layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from singanet.base.arguments import checked_count
from singanet.base.described import checked_call, made_of
from singanet.base.elsewhere import missing_attribute
from singanet.engine.net import Net
from singanet.program.programs import Programs, programs_of
from singanet.training.options import USUAL, FitOptions

if TYPE_CHECKING:
    from os import PathLike

    from singanet.budget import MemoryPlan
    from singanet.checkpoint import LoadReport
    from singanet.decoding import Decoder, DraftModel
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
    """A net of layers in topological order, whose `backward` yields gradients layer by layer.

    ``FeedForwardNet([layer, ...], loss=..., metric=...)`` is a chain; named nets may be among the
    layers. ``FeedForwardNet(loss, metric)`` is empty, and `add` builds it. ``inputs`` and
    ``outputs`` are symbols, and make a net of the layers between them. `train`, `step`, `evaluate`
    and `predict` use ``loss`` and ``metric``. A net needs a ``name`` to be nested in another.
    ``seed`` fixes the initial parameters and every random draw; None takes the next seed after
    `singanet.set_seed`, or a fresh one. Errors: arguments of other types; the errors of `add`. See
    `Net` for the attributes. Each method imports its room when called.
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

    @checked_call
    def upto(self, *layers: Layer | str, seed: int | None = None) -> FeedForwardNet:
        """Return a net of the layers that ``layers`` depend on, with ``layers`` as its outputs.

        Use it to put a new head on a trained net. Both nets share the layers; loss, metric,
        optimizer and `freeze` are not copied. ``seed`` seeds layers that are added later. Errors:
        an unknown layer, no layer, or an offloaded net.
        """
        from singanet.graph.subgraph import add_upto

        self._execution_plan()  # fills empty parameters by this net's own seed
        made = FeedForwardNet(seed=seed)
        made.device, made.dtype = self.device, self.dtype
        add_upto(made, self, [each if isinstance(each, str) else each.name for each in layers])
        return made

    @checked_call
    def as_type(self, dtype: Any, rounding: str | None = None) -> None:
        """Convert every parameter to a float type, and compute in it from now on.

        "bfloat16" stores weight matrices and embedding tables in two bytes a number and computes in
        float32; kernels may round the rows that they multiply by such a matrix. ``rounding`` rounds
        the updates: "stochastic", the default, draws from ``net.rng``; "remainder" also stores the
        lower 16 bits, so updates equal those in float32. "float32_fast" stores float32, but
        convolutions and products round their operands to bfloat16. Errors: `ArgumentError` if
        ``dtype`` is not a float type; `BackendError` for "float32_fast" if the kernels or the
        processor lack such products; `CallOrderError` for "bfloat16" if the net is offloaded,
        nested or on several ranks.
        """
        from singanet.engine.holding import hold_as

        hold_as(self, dtype, rounding, super().as_type)

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
        With ``data``, typical inputs of the net, the other inputs compensate each input's rounding
        error (GPTQ, Frantar et al. 2022).

        A quantized net refuses training steps, except for the pairs that `adapt` adds.
        ``as_type("float32")`` restores arrays. Returns a report of the cost, with the loss on ``x``
        and ``y`` (as for `evaluate`) before and after if they are passed. Errors: another type; the
        errors of ``as_type("bfloat16")``.
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
        (lora, out) is zero, so outputs do not change at first (Hu et al. 2021). ``where`` is
        "attention" for the projections of all attention layers, "all" for every weight of these, of
        `GatedUnit` and of `Dense`, or names and patterns ("layers/*/unit", "*/query_weight") of
        layers or weights. Weights that are shared, that read sparse inputs or that belong to a
        nested net are skipped. ``alpha`` is ``lora`` by default; ``dropout`` is the probability of
        dropping an input of a pair in training. Pairs are parameters of their layers,
        ``<layer>/<weight>.lora_a`` and ``.lora_b``. Returns the names of the adapted weights.
        Errors: a rank above that of a weight; a name that matches nothing; a net that has pairs
        already, is offloaded, nested in another or an Executor's.
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
        """Set the optimizer, loss and metrics of `fit`; None keeps the net's own loss and metric.

        Each is an object or a name: "adam", "mse", "accuracy". A metric is named after its class
        (``accuracy``), or by its key in a dict; the first becomes the net's metric. For several
        outputs the keys are names of output layers, each with one metric or a list, which get the
        names ``<output>_accuracy``. ``weighted_metrics`` count the weights of samples and classes.
        ``mixed_precision`` "float16", or a `MixedPrecision`, converts the net to that type.
        "float32_fast" and "bfloat16" let products round their operands to bfloat16 if the processor
        supports it; "bfloat16" also stores arrays in it that only oneDNN's kernels touch. "auto" is
        "bfloat16" if that is faster. `as_type` converts back. Errors: an argument that is not an
        optimizer, loss or metric; `BackendError` for an unsupported precision. On an error the net
        is unchanged.
        """
        from singanet.training.compiled import compile_net

        compile_net(self, optimizer, loss, metrics, mixed_precision, weighted_metrics)

    @made_of(FitOptions)
    def fit(self, options: FitOptions) -> History:
        """Train from ``initial_epoch`` up to epoch ``epochs``, by the streaming backward.

        With a ``memory_budget``, bytes or a text such as "600MB", steps run as `plan` finds; a
        budget that is too small is refused before the first step. If nothing else is enough, the
        net is offloaded to an ``offload_folder``, and stays there. All arguments:
        https://github.com/singanet/singanet/blob/main/docs/training.md Errors before the first
        step: arguments out of range; a net that is not compiled; data that do not fit or are empty;
        errors of callbacks. Errors later: targets that do not fit; data that end early; errors of
        data or callbacks, which ``on_error`` receives.
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
        copied first and restored exactly, also after an error. ``x`` and ``y`` are as for `fit`;
        the test reads the next batches. Errors: a net that is not compiled; rates that do not rise;
        fewer than 10 steps; an iterator, whose batches would be lost; an optimizer without a rate;
        several processes.
        """
        from singanet.training.rate_range import find_lr

        return find_lr(self, x, y, batch_size, low, high, steps)

    @checked_call
    def evaluate(
        self, x: Any, y: Any = None, batch_size: int | None = 32, sample_weight: Array | None = None
    ) -> Evaluation:
        """Return ``(loss, metric)`` without training; None for a loss or metric that is not set.

        The result's ``.logs`` has all measures by name: the loss, the losses of several outputs,
        and every compiled metric. ``batch_size`` samples are computed at a time, with None all of
        them; the measures cover all samples together. A custom metric that only judges single
        batches gets all samples at once. Without ``y``, ``x`` is a loader or another iterable of
        batches ``(x, y)`` or ``(x, y, sample_weight)``.
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

        The result is an array, or for several outputs a dict by output name. ``by_name`` returns a
        dict for one output too, so that type checkers know the type. ``batch_size`` samples are
        computed at a time, with None all of them, which a net needs if samples affect each other.
        ``x`` may also be a loader or another iterable of batches ``x`` or ``(x, ...)``.
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
        """Run one streaming step with the compiled optimizer; return loss and metrics before it."""
        from singanet.training.evaluation import train_on_batch

        return train_on_batch(self, x, y, sample_weight)

    @checked_call
    def test_on_batch(self, x: Any, y: Any, sample_weight: Array | None = None) -> dict[str, Any]:
        """Return the loss and the compiled metrics of a batch, without training."""
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

        ``ys`` are layers, ``(layer, index)`` for one of several outputs, or "loss", for which
        ``feed`` has "targets", and optionally "sample_weight", in addition to the inputs. ``xs``
        are layers (their outputs), inputs and parameters. An input has the name of its `Input`; the
        input of another layer is ``"<layer>/input"``, or ``"input"`` if the net has one input.
        ``dys``, by y, are the initial gradients; None means ones. ``train`` runs a training
        forward. ``unreachable="zeros"`` returns zeros for an x that does not affect ys. Only layers
        between xs and ys run. The caller owns every array. Errors: unknown names; integer arrays;
        no path from an x to ys; a wrong shape. The guide:
        https://github.com/singanet/singanet/blob/main/docs/gradients.md.
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
        is `RowSparse`. Values may be updated in place.
        """
        from singanet.gradients import iter_gradients

        return iter_gradients(self, ys, xs, feed, dys, train, unreachable)

    @checked_call
    def jacobian(
        self, ys: Y | Sequence[Y], xs: N | Sequence[N], feed: Any
    ) -> dict[Y, dict[N, Array]]:
        """Return the gradient of every element of each y by each x, in evaluation: ``[y][x]``.

        Its shape is y's shape followed by x's, both with the batch axis. It takes a forward and a
        backward pass for every element of y. Errors: as for `gradients`; a y of several arrays.
        """
        from singanet.gradients import jacobian

        return jacobian(self, ys, xs, feed)

    @checked_call
    def hessian_vector_product(
        self, ys: Names, xs: N | Sequence[N], feed: Any, vectors: Directions, dys: Any = None
    ) -> dict[N, Array]:
        """Return the derivative of the gradients of ``ys`` by ``xs`` along ``vectors``.

        ``vectors`` are directions by name, of anything that ``xs`` accepts, in ``xs`` or not; other
        arrays are constant. The derivative is exact: forward and backward, in evaluation, carry
        tangents in float64, on the net's device. Errors: as for `gradients`; a vector of another
        shape; layers and losses that cannot be recorded.
        """
        from singanet.gradients import hessian_vector_product

        return hessian_vector_product(self, ys, xs, feed, vectors, dys)

    @checked_call
    def summary(self, batch_size: int | None = None, extent: int | None = None) -> str:
        """Return a table of the layers: output shapes, parameters, multiply-adds, sources; totals.

        ``batch_size`` adds the bytes a sample that each layer stores for backward, and the peak of
        a training step of ``batch_size`` samples. Two steps of 2 and 3 samples of ones measure
        them, and leave the net unchanged. ``extent`` replaces axes of any extent there. Errors:
        arguments that are not positive ints; no ``extent`` if an input needs it.
        """
        from singanet.summary import summary_table

        sizes = {"batch_size": batch_size, "extent": extent}
        for name, size in sizes.items():
            sizes[name] = None if size is None else checked_count("net.summary", name, size, 1)
        planned = None if batch_size is None else self.memory(batch_size, extent=extent)
        return summary_table(self, **sizes, planned=planned)

    @checked_call
    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """Draw the graph as SVG; return its text, and write it to ``path``, a .svg or .png file.

        Layers are below their sources, with shapes and parameter counts. Errors: another suffix;
        `FileAccessError`; `BackendError` for .png without the extra ``report``.
        """
        from singanet.picture import plot_net

        return plot_net(self, path)

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
    def from_config(cls, config: Mapping[str, Any], seed: int | None = None) -> FeedForwardNet:
        """Build the net that `to_config` described, with fresh parameters.

        Its classes are singanet's or registered. Errors: `ConfigError`, `UnknownNameError`.
        """
        from singanet.saving.nets import net_from_config

        return net_from_config(cls, config, seed)

    @checked_call
    def save_model(self, f: str | PathLike[str], training: bool = True) -> None:
        """Write the whole net to one file, from which `singanet.load_model` builds it again.

        With ``training`` the file includes what `compile` set: optimizer with its state, metrics,
        mixed precision. Name the file ``name.singanet``. It is written atomically, one array at a
        time. Errors: `ConfigError` for a class that is neither singanet's nor registered;
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
        """Write all parameters, running state included, to ``f``, atomically.

        ``format`` is 'snapshot', 'pickle', 'hdf5', 'npz', 'safetensors', 'keras' or 'keras-legacy'.
        None goes by the suffix; without a suffix it writes SINGA's snapshot, ``f.bin`` and
        ``f.desc``. ``data_format`` is the data format of the Keras model that will load the file,
        which also takes the state of ``optimizer``. ``layout="torch"`` writes a '.safetensors' file
        for PyTorch's ``load_state_dict``: a layer becomes the module of its name, with dots for
        slashes, or of the name in ``rename``. Snapshots and pickles store a recurrent layer's
        weights as one array. ``buffer_size`` is SINGA's and unused here; a SINGA that reads the
        records needs one above the largest. Errors: `FileAccessError`; arrays that the format
        cannot store; the suffix of another program's files.
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
        1.0.0 are read too. ``rename`` maps names in the file to names in the net.
        ``layout="torch"`` reads a state dict of PyTorch, the default for '.pt' files: modules match
        by name, by ``rename``, by a unique shape or by the numbers in their names, with
        ``by_order`` the rest by order; matrices are transposed. ``layout``, "torch" or "singanet",
        is required if ``rename`` maps a name with dots to a square matrix. ``key`` is the entry of
        a training checkpoint that contains the weights. ``strict`` refuses missing, extra and
        unfitting arrays; ``cast`` converts types; ``optimizer`` takes the state in a Keras file.
        The whole file is checked first: on an error the net is unchanged. Errors:
        `StateMismatchError`, whose ``report`` is a table of both sides, `FileFormatError`,
        `ChecksumError`, `VersionError`, `FileAccessError`.
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
        are bit-identical. After every step the folder is a checkpoint, which `load` reads;
        ``resume`` continues from an earlier process's folder. ``activations`` also offloads the
        arrays that layers store for backward, and counts them in ``keep``, bytes or a text with a
        unit. The state is that of ``optimizer``, by default the compiled one, or of the one passed
        to `step`. Errors: `FileAccessError` for a folder that is read-only, in use, full or has
        other files; a ``keep`` too small for a layer; files of another net (`StateMismatchError`)
        or optimizer (`DataError`). On an error net and folder are unchanged. The guide:
        https://github.com/singanet/singanet/blob/main/docs/offload.md.
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

        ``decoder(x)`` returns `predict` of the whole sequences at the steps ``x``. It has memory
        for ``max_length`` steps, by default the net's own maximum; ``fixed`` are inputs without
        steps. Sequences may differ in length, be copied and roll back, by up to ``spare`` steps if
        sliding windows drop older ones; see `Decoder`. Errors: a net whose outputs for parts differ
        from those for the whole.
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
        draft: FeedForwardNet | DraftModel | None = None,
        prefix: Decoder | None = None,
    ) -> list[Array]:
        """Continue each of ``prompts``, an array (N, P) of ids or N arrays of any length.

        Ids are drawn by the net's probabilities to the power of 1 / ``temperature``; 0 takes the
        likeliest. ``top_k`` and ``top_p`` are as for `Sampling`. A row ends after ``length`` ids,
        or at the first ``stop``, an id or a sequence of ids. A `decoder` caches earlier steps; past
        ``max_length`` steps it reads the last half again. The same ``seed`` and prompts give the
        same ids, and prompts do not affect each other. ``draft``, a smaller net of the same
        vocabulary or a `DraftModel`, proposes ids that this net verifies; their distribution is the
        same. ``prefix``, a `decoder` of this net that has read one sequence, precedes each prompt.
        `decoding.generate` also returns the ids' probabilities. Errors: a net whose output is not
        probabilities (N, T, C); a draft of another vocabulary; the errors of `decoder`.
        """
        from singanet.decoding import Sampling, generate

        sampling = Sampling(temperature, top_k, top_p)
        drawn = prompts, length, sampling, seed, stop, max_length
        made = generate(self, *drawn, draft=draft, prefix=prefix)
        return [each.ids for each in made]

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

        The batch gives the shapes; net and optimizer do not change. With ``rerecord`` the program
        records again for other shapes and after changes of the net; else it refuses them.
        ``recompute`` selects which arrays a step drops after forward and computes again for
        backward: "none"; "cheap", memory-bound operations if that lowers the peak; "blocks", all
        but the arrays between blocks; or a number of bytes for the arena, which may repeat products
        and convolutions too. None is `programs.recompute`. Results are bit-identical. Errors:
        targets without an optimizer or the reverse; an arena that cannot fit the bytes; the errors
        of the net.
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
        counted. The state is that of ``optimizer``, by default the compiled one. ``extent``
        replaces axes of any extent; ``recompute`` is as for `record`. Errors: numbers that are not
        positive ints; an arena that cannot fit the bytes.
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

        It tries in this order the ways in ``allow``: unchanged, "recompute", "micro-batches",
        "light state" (other losses: an Adam becomes a `FactoredAdam`), "offload". The state is that
        of ``optimizer``, by default the compiled one. The budget is bytes or a text such as
        "600MB"; None lists every way. With ``ranks`` the budget is for each of ``ranks`` processes
        that train by `parallel.Sharded`. Nothing runs, and the net is unchanged. Errors: a budget
        that is too small, with the smallest that works and how; numbers that are not positive ints;
        a net that is offloaded or cannot be recorded.
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
        in the user's cache folder; cases in it are not measured unless ``again``. Last bits may
        differ afterwards. ``extent`` replaces axes of any extent. Errors: a ``batch_size`` or
        ``extent`` that is not a positive int; kernels other than oneDNN's, such as a device's; a
        file that cannot be written.
        """
        from singanet.program.tuning import tune_kernels

        return tune_kernels(self, batch_size, extent, again)


@checked_call
def load_model(path: str | PathLike[str], training: bool = True) -> FeedForwardNet:
    """Build the net that `FeedForwardNet.save_model` wrote to ``path``, without its code.

    It predicts and continues training exactly as the saved net. ``training=False`` skips optimizer
    and metrics. Classes are singanet's own and those given to `singanet.register`; no code in the
    file runs. Errors: `UnknownNameError` for another class; `ConfigError`; `FileFormatError`;
    `StateMismatchError`; `ChecksumError`; `VersionError`.
    """
    from singanet.saving.whole_model import read_model

    return read_model(FeedForwardNet, path, training)
