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
    What it consists of is in `Net`; the rooms behind these methods are imported when called.
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
        """The recorded programs. Errors: `CallOrderError` if offloaded, or on several ranks."""
        return programs_of(self)

    @checked_call
    def upto(self, *layers: Layer | str, seed: int | None = None) -> FeedForwardNet:
        """The part of the net that ``layers`` need, which are its outputs; to be given a new head.

        Both nets share the layers; loss, metric, optimizer and `freeze` are not taken along.
        ``seed`` is for what is added. Errors: an unknown layer, or none; a net that is offloaded.
        """
        from singanet.graph.building import add_upto

        self._execution_plan()  # filled by this net's own seed, as far as it is not yet
        made = FeedForwardNet(seed=seed)
        made.device, made.dtype = self.device, self.dtype
        add_upto(made, self, [each if isinstance(each, str) else each.name for each in layers])
        return made

    @checked_call
    def as_type(self, dtype: Any, rounding: str | None = None) -> None:
        """Convert every parameter, and compute in this float type from now on.

        "bfloat16" holds the matrices that layers multiply by, and tables, in two bytes a number,
        and computes in float32; kernels may round rows that they multiply by such. Updates are
        rounded by ``rounding``: "stochastic", the default, by draws of ``net.rng``, or "remainder",
        which keeps the lower half too, so that updates are those of float32. "float32_fast" is
        float32 in all arrays, with convolutions and products that round what they multiply to
        bfloat16. Errors: `ArgumentError` for no float type, `BackendError` for "float32_fast" where
        the kernels or the processor have no such products; for "bfloat16" `CallOrderError` for a
        net that is offloaded, on several ranks or nested.
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
        """Hold matrices and tables in blocks of whole numbers of "int8" or "int4", to predict.

        Of each output 32 neighbouring inputs have a float16 scale, with "int4" a minimum too: the
        blocks Q8_0 and Q4_1 of llama.cpp, about 1.06 and 0.63 bytes a number. Tables of words are
        of 8 bits in each case; matrices whose inputs are no multiple of 32 stay as they are. What
        is computed is float32; kernels may round few rows to whole numbers, by blocks too.
        ``data``, inputs of the kind that the net will see, let the errors of each input be made
        good by the others (GPTQ, Frantar et al. 2022).

        Blocks are not trained: a step is refused, but for pairs that `adapt` puts beside them.
        ``as_type("float32")`` makes arrays of them again. Returned is what it cost, with the loss
        of ``x`` and ``y`` (as for `evaluate`) before and after, where they are given. Errors:
        another type; as for ``as_type("bfloat16")``.
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
        """Freeze the net, and put pairs of rank ``lora`` beside weights, to be trained instead.

        A weight W (in, out) then gives x W + (alpha / lora) (x A) B, where A (in, lora) is drawn
        and B (lora, out) zero, so that outputs begin as they were (Hu et al. 2021). ``where`` is
        "attention" for the projections of all attention layers, "all" for every weight of these,
        of `GatedUnit` and of `Dense`, or names and patterns ("layers/*/unit", "*/query_weight") of
        layers or weights. Weights that several layers have, that read sparse inputs or are in a
        nested net are left out. ``alpha`` is ``lora`` by default; ``dropout`` is the probability of
        dropping what a pair reads, in training. Pairs are parameters of their layers,
        ``<layer>/<weight>.lora_a`` and ``.lora_b``. Returned are the names of the weights. Errors:
        a rank above that of a weight, a name that means none; a net that has pairs, that is
        offloaded, nested in another or an Executor's.
        """
        from singanet.engine.adapting import adapt

        return adapt(self, lora, where, alpha, dropout)

    @checked_call
    def merge(self) -> list[str]:
        """Add the pairs that `adapt` made into their weights, and take them away.

        W becomes W + (alpha / lora) A B, rounded once to the type of W. Everything stays frozen:
        ``net.trainable = True`` ends that. Returned are the names of the weights. Errors: a net
        without pairs, one that is offloaded or nested in another, a weight that is read-only or has
        come to be shared; the net is then as it was.
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
        """Say what `fit` trains with; None keeps the net's own loss and metric.

        Each may be an object or its name: "adam", "mse", "accuracy". A metric is called after its
        class (``accuracy``), or by its key in a dict; the first becomes the net's metric. For a
        net with several outputs the keys are names of output layers, each with one metric or a
        list of them, which are called ``<output>_accuracy``. ``weighted_metrics`` are metrics that
        the weights of samples and classes count in. ``mixed_precision`` "float16", or a
        `MixedPrecision`, turns the net to that type; "float32_fast" and "bfloat16" let products
        round what they multiply to bfloat16 on processors that have such, the latter keeps what
        only oneDNN's kernels touch in it, and "auto" is this where it can be. `as_type` turns back.
        Errors: anything that is no optimizer, loss or metric, `BackendError` for a precision that
        is not there; the net is then as it was.
        """
        from singanet.training.compiled import compile_net

        compile_net(self, optimizer, loss, metrics, mixed_precision, weighted_metrics)

    @made_of(FitOptions)
    def fit(self, options: FitOptions) -> History:
        """Train for ``epochs`` epochs in all, the streaming backward underneath.

        With a ``memory_budget``, bytes or a text such as "600MB", steps are carried out as `plan`
        finds; a budget that cannot be kept is refused before the first step. Where nothing else
        is enough, the net is offloaded to an ``offload_folder``, and stays there. Every argument:
        https://github.com/singanet/singanet/blob/main/docs/training.md
        Errors, before the first step: arguments out of range; a net that was not compiled, data
        that do not fit or leave nothing to train on, what callbacks refuse. Later: targets that do
        not fit, data that end early, what data or callbacks raise, of which ``on_error`` hears.
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
        larger; it ends early where the loss rises far above what it was. The training's state is
        copied, and afterwards as it was, to the bit, also after an error. ``x`` and ``y`` are as
        for `fit`, and the batches those that come next. Errors: a net that was not compiled; rates
        that do not rise; fewer than 10 steps; an iterator, whose batches would be gone; an
        optimizer without a rate; several processes.
        """
        from singanet.training.rate_range import find_lr

        return find_lr(self, x, y, batch_size, low, high, steps)

    @checked_call
    def evaluate(
        self, x: Any, y: Any = None, batch_size: int | None = 32, sample_weight: Array | None = None
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

        It lays constants out as the kernels want them, folds batch normalisations into convolutions
        and lets one kernel do what follows these; the link of the loss is part of it. Predictions
        differ from `predict` by rounding, about 1e-6 of the largest. It shares nothing with the
        net. Errors: layers that cannot be copied, a `forward` or `predict` of a subclass's own; on
        a device layers that cannot be recorded, when it is called.
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
        runs as a training forward does. ``unreachable`` "zeros" gives zeros for what no gradient
        comes to. Only what lies between is run and kept; every array is the caller's own. Errors:
        unknown names; integers; no way from ys to an x; a wrong shape. The guide:
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
        through forward and backward in float64, where the net's arrays are. Errors: as for
        `gradients`; a vector of another shape; layers and losses that cannot be recorded.
        """
        from singanet.gradients import hessian_vector_product

        return hessian_vector_product(self, ys, xs, feed, vectors, dys)

    @checked_call
    def summary(self, batch_size: int | None = None, extent: int | None = None) -> str:
        """A table of the layers: output shapes, parameters, multiply-adds, sources; totals.

        With ``batch_size`` also the bytes that each layer keeps for backward, a sample, and the
        peak of a training step of so many samples, counted in two steps of 2 and 3 samples of ones,
        which leave the net as it was. ``extent`` stands in for axes of any extent there. Errors:
        arguments that are no positive int, or no ``extent`` where an input needs it.
        """
        from singanet.summary import summary_table

        sizes = {"batch_size": batch_size, "extent": extent}
        for name, size in sizes.items():
            sizes[name] = None if size is None else checked_count("net.summary", name, size, 1)
        planned = None if batch_size is None else self.memory(batch_size, extent=extent)
        return summary_table(self, **sizes, planned=planned)

    @checked_call
    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """A picture of the graph as SVG text, also written to ``path``, a .svg or .png file.

        Layers stand below their sources, with shapes and parameter counts. Errors: another suffix,
        `FileAccessError`, .png without the extra ``report`` (`BackendError`).
        """
        from singanet.picture import plot_net

        return plot_net(self, path)

    def _repr_html_(self) -> str:
        """The table and the picture, for notebooks."""
        from singanet.picture import net_html

        return net_html(self)

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

        Its classes are singanet's or registered. Errors: `ConfigError`, `UnknownNameError`.
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
        ``f.bin`` and ``f.desc``. ``data_format`` is that of the Keras model to load it, which takes
        the state of ``optimizer`` as well. ``layout`` "torch" writes what ``load_state_dict`` of
        PyTorch takes from a '.safetensors' file: layers are modules of their names, with dots for
        slashes, or of those that ``rename`` has for them. Snapshots and pickles hold a recurrent
        layer's weights as one array. ``buffer_size`` is SINGA's, which nothing here needs: a SINGA
        that reads records needs one above the largest. Errors: `FileAccessError`, and what the
        format cannot hold; the suffix of another program's files.
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
        """Read parameters from ``f`` into the net's arrays, and report what was matched how.

        The format is that of the file, whatever its name; ``rename`` goes from names in the file
        to names in the net. ``layout`` "torch" says that names and arrays are those of a state dict
        of PyTorch, as in '.pt' files it does by itself: modules are found by name, by ``rename``,
        by shapes that occur once or by the numbers in their names, and matrices are turned;
        ``by_order`` lets the others go by their order. It has to be said, or "singanet", where a
        square matrix is renamed from a name with dots. ``key`` is the entry of a training's
        checkpoint that holds the weights. Files of every SINGA since 1.0.0 and of Keras are read as
        well. ``strict`` refuses a file with missing, extra or unfitting arrays, ``cast`` converts
        types, ``optimizer`` takes the state in a Keras file. The whole file is checked first: on
        any error the net is as it was. Errors: `StateMismatchError`, whose ``report`` is a table of
        both sides, `FileFormatError`, `ChecksumError`, `VersionError`, `FileAccessError`.
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
        """Keep parameters and optimizer state in ``folder``, at most ``keep`` of them in memory.

        The arrays of a layer are read ahead and written back while its neighbours compute; results
        are the same bits. After every step the folder is a checkpoint, which `load` reads;
        ``resume`` goes on from that of an earlier process. With ``activations`` the arrays that
        layers keep for backward go there too, and count. ``keep`` is bytes, or a text with a unit.
        The state is that of ``optimizer``, by default the compiled one, or the one that `step`
        gets. On any error net and folder are as they were: a folder that holds something else, is
        read-only, in use or on a full disk (`FileAccessError`); a ``keep`` too small for a layer;
        the files of another net (`StateMismatchError`) or optimizer (`DataError`). The guide:
        https://github.com/singanet/singanet/blob/main/docs/offload.md.
        """
        from singanet.offload import offload

        offload(self, folder, keep, optimizer, resume, activations)

    @checked_call
    def onload(self) -> None:
        """Bring back what the folder has, still a checkpoint. Errors: a net that is in memory."""
        from singanet.offload import onload

        onload(self)

    @checked_call
    def decoder(
        self, max_length: int | None = None, fixed: Mapping[str, Any] | None = None, spare: int = 0
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
        the likeliest is taken; ``top_k`` and ``top_p`` are those of `Sampling`. Each row ends after
        ``length`` ids, or with the first ``stop``, an id or a run of ids. The net remembers what it
        has read, `decoder`; past ``max_length`` steps it reads the last half anew. The same
        ``seed`` and prompts give the same ids; each prompt goes on as it would alone. A ``draft``,
        a smaller net of the same vocabulary or a `Drafter` of it, foretells ids that this net reads
        at once and takes or not, so that they are drawn as without. A ``prefix``, a `decoder` of
        this net that has read one sequence, comes before each prompt. `decoding.generate` tells how
        probable each id was. Errors: a net whose output is no probabilities (N, T, C), and those of
        `decoder`; a draft of another vocabulary.
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
        """A training step, or without ``y`` and ``optimizer`` an evaluation, as a program.

        The batch gives the shapes; net and optimizer are afterwards as they were. With
        ``rerecord`` the program records again for other shapes and after changes of the net, else
        it refuses. ``recompute`` is what a step drops after its forward pass and makes again when
        the backward pass needs it: "none"; "cheap", passes over memory as far as less is needed
        then; "blocks", all but what goes on from block to block; or the bytes that the arena may
        take, for which products and convolutions run again, too; None is `programs.recompute`.
        Results are the same bits. Errors: targets without an optimizer or the reverse, bytes that
        the arena cannot be kept in, and what the net refuses.
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
        stands in for axes of any extent, ``recompute`` is as for `record`. Errors: numbers that are
        no positive int; bytes that the arena cannot be kept in.
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
        """How steps of ``batch_size`` samples keep within a ``memory_budget``, cheapest in time.

        In this order, as far as ``allow`` names them: as it is, "recompute", "micro-batches",
        "light state" (other losses: an Adam becomes a `FactoredAdam`), "offload". The state is
        that of ``optimizer``, by default the compiled one. The budget is a number of bytes or a
        text such as "600MB"; None looks at every way. With ``ranks`` it is for each of so many
        processes that train by `parallel.Sharded`. Nothing is run, and the net stays as it is.
        Errors: a budget that cannot be kept, with the smallest that can and how; numbers that are
        no positive int; a net that is offloaded, or whose steps cannot be recorded.
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
        """Measure by which route each convolution of a batch is fastest, and go by it from now on.

        A training step and a prediction of a `predictor` are rehearsed on ones, which leaves the
        net as it was; each different kernel then runs alone by the routes that estimates do not
        rule out. The choices are kept for later processes in the file that ``SINGANET_ROUTES``
        names, or in the user's cache folder; cases that it holds are not measured unless
        ``again``. Last bits may differ afterwards. ``extent`` stands in for axes of any extent.
        Errors: a ``batch_size`` or ``extent`` that is no positive int; other kernels than
        oneDNN's, as those of a device are; a file that cannot be written.
        """
        from singanet.program.tuning import tune_kernels

        return tune_kernels(self, batch_size, extent, again)


@checked_call
def load_model(path: str | PathLike[str], training: bool = True) -> FeedForwardNet:
    """The net that `FeedForwardNet.save_model` wrote to ``path``, without its code.

    It predicts and goes on training as the one that was saved, to the bit. ``training=False``
    leaves optimizer and metrics out. Classes are singanet's own and those given to
    `singanet.register`; nothing in the file is run. Errors: `UnknownNameError` for another class,
    `ConfigError`, `FileFormatError`, `StateMismatchError`, `ChecksumError`, `VersionError`.
    """
    from singanet.saving.whole_model import read_model

    return read_model(FeedForwardNet, path, training)
