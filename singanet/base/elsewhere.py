"""Advice for names of other libraries, and lazy imports of public names."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from singanet.base.garbage import no_collections
from singanet.base.tracebacks import entry_point
from singanet.base.words import aliases
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean

_CALLED = {
    "batch_input_shape": ("input_shape",),
    "bsp": ("consistency",),
    "corr": ("error_feedback",),
    "ctx": ("device",),
    "decay": ("weight_decay",),
    "eos_token_id": ("stop",),
    "eval_node_list": ("outputs",),
    "feed_dict": ("feed",),
    "in_channels": ("input_shape",),
    "in_features": ("input_shape",),
    "input_dim": ("input_shape",),
    "grad_ys": ("dys",),
    "insert_grad": ("dys",),
    "input_ids": ("prompts",),
    "mask_zero": ("mask_index",),
    "max_len": ("max_length",),
    "max_new_tokens": ("length",),
    "max_tokens": ("length",),
    "var_list": ("params",),
}
"""Names elsewhere, and what a class may call it here."""

_INSTEAD = {
    "activation": "put Activation('relu1', 'relu') after it, as a layer of its own",
    "affine": "pass center=False, scale=False",
    "amsgrad": "leave it out: Adam and AdamW take it",
    "attention_mask": "leave it out, and give prompts of different lengths as a list",
    "batch_first": "leave it out: the batch is axis 0 everywhere",
    "bias_initializer": "pass b_specs={'init': 'constant', 'value': 0.1}",
    "bsp": "pass it to the optimizer: ParameterServer(sgd, consistency='bsp'), 'asp' or 'ssp'",
    "cache_bound": "pass it to the table: Embedding(..., cache=Cache('lfu', pull_bound=100,"
    " push_bound=100))",
    "clipnorm": "pass constraint=ClipNorm(...), or clip= to net.fit",
    "clipvalue": "pass clip=..., clip_by='value' to net.fit",
    "comm_mode": "pass parallel=singanet.parallel.init() to reduce gradients; or minimize by"
    " singanet.parallel.ParameterServer(sgd) or Hybrid(sgd)",
    "convert_to_numpy_ret_vals": "leave it out: values are arrays and floats",
    "cstable_policy": "pass it to the table: Embedding(..., cache=Cache('lfu'))",
    "ctx": "leave it out, and move the net with net.to_device",
    "device": "leave it out, and move the net with net.to_device",
    "do_sample": "pass temperature=0 for the likeliest id, temperature=1.0 to draw",
    "dtype": "leave it out, and convert the net with net.as_type",
    "embeddings_initializer": "pass W_specs={'init': 'gaussian', 'mean': 0, 'std': 0.05}",
    "enable_lazy": "leave it out: shapes are known before the first run",
    "filepath": "give the folder for the files as the first argument",
    "freeze": "call net.freeze(layer) before; net.unfreeze() undoes it",
    "from_logits": "leave it out: SoftmaxCrossEntropy and SigmoidCrossEntropy take scores,"
    " CategoricalCrossEntropy and BinaryCrossEntropy probabilities",
    "global_clipnorm": "pass clip=..., clip_by='global' to net.fit",
    "inplace": "leave it out: layers never change their input",
    "is_train": "leave it out: net.forward(False, x) is evaluation, net.forward(True, x) training",
    "jit_compile": "leave it out: steps are recorded automatically",
    "kernel_initializer": "pass W_specs={'init': 'he_normal'}",
    "kernel_regularizer": "pass W_specs={'regularizer': 2e-4}, the factor of w in the gradient",
    "loss_weights": "pass it to the loss: loss=MultiLoss({'a': ..., 'b': ...}, weights={'a': 2.0})",
    "learning_rate": "pass it to the optimizer: SGD(learning_rate=0.1)",
    "lr": "pass it to the optimizer: SGD(learning_rate=0.1)",
    "metrics": "pass them to net.compile",
    "num_return_sequences": "repeat the prompt: [prompt] * 3",
    "optimizer": "pass it to net.compile",
    "pad_token_id": "leave it out, and give prompts of different lengths as a list",
    "padding": "put Pad before it",
    "params": "leave it out: net.fit, net.step and update pass the parameters",
    "recurrent_dropout": "leave it out; dropout= drops between the stacks",
    "axes": "leave it out: the last axes are multiplied; Permute before it, or functional.einsum",
    "input_length": "leave it out, or give input_shape=(length,)",
    "normalize": "put L2Norm before both inputs",
    "noise_shape": "use SpatialDropout",
    "bad_words_ids": "it is called bad_words here",
    "logits_processor": "pass a function of ids and scores as logits",
    "stop_strings": "pass the texts as stop",
    "return_dict": "leave it out: .logs of evaluate's result is a dict",
    "return_tensors": "leave it out: ids are NumPy's arrays",
    "run_eagerly": "leave it out; net.programs.enabled = False runs layer after layer",
    "save_best_only": "leave it out: best.npz has the best epoch alone, by monitor=; keep= limits"
    " the number of epochs",
    "save_weights_only": "leave it out: best.npz has only the weights",
    "sequential": "leave it out: recorded steps run in the order of recording",
    "skip_special_tokens": "leave it out: tokenizer.decode converts the returned ids to text",
    "spars": "pass ratio=, the fraction of elements that is sent, as with topK=True, or threshold=,"
    " the magnitude from which on they are sent, as with topK=False",
    "topK": "leave it out: ratio= sends the largest, as topK=True, threshold= those from it on",
    "trainable": "assign layer.trainable = False",
    "use_cache": "leave it out: the net caches earlier steps",
    "use_graph": "leave it out: steps are recorded automatically; net.programs.enabled = False"
    " turns it off",
    "use_multiprocessing": "leave it out; singanet.data.Prefetch reads ahead",
    "use_sparse_pull": "leave it out: only the rows that a batch names are pulled",
    "verbose": "leave it out: nothing is printed",
    "weights": "assign layer.params['weight'].value, or use net.load",
    "workers": "leave it out; singanet.data.Prefetch reads ahead",
}
"""Names elsewhere of what no class takes here."""

_NAMES = {
    "Adagrad": "AdaGrad",
    "AdamWScheduleFree": "ScheduleFreeAdamW",
    "AdaptiveAveragePooling": "AdaptiveAvgPooling",
    "AdaptiveAvgPool": "AdaptiveAvgPooling",
    "AdaptiveMaxPool": "AdaptiveMaxPooling",
    "Attention": "MatMul and Softmax, or MultiHeadAttention(num_heads=1)",
    "AvgPool": "AvgPooling",
    "BackupAndRestore": "net.fit(resume=folder) with ModelCheckpoint(folder)",
    "BCELoss": "BinaryCrossEntropy",
    "BCEWithLogitsLoss": "SigmoidCrossEntropy",
    "BatchNorm": "BatchNormalization",
    "Bidirectional": "LSTM, GRU or RNN with bidirectional=True",
    "BinaryFocalCrossentropy": "SigmoidFocal",
    "BinaryCrossentropy": "SigmoidCrossEntropy of scores, or BinaryCrossEntropy of probabilities",
    "CELU": "Activation('name', 'celu')",
    "CTCLoss": "CTC",
    "CategoricalAccuracy": "Accuracy",
    "CategoricalFocalCrossentropy": "SoftmaxFocal",
    "CategoricalCrossentropy": "SoftmaxCrossEntropy of scores, or CategoricalCrossEntropy of"
    " probabilities",
    "CircularPad": "Pad(mode='circular')",
    "ConstantPad": "Pad",
    "Conv1d": "Conv1D",
    "Conv2d": "Conv2D",
    "Conv3d": "Conv3D",
    "ConvTranspose1d": "Conv1DTranspose",
    "ConvTranspose2d": "Conv2DTranspose",
    "ConvTranspose3d": "Conv3DTranspose",
    "CosineAnnealingLR": "Cosine",
    "CosineAnnealingWarmRestarts": "CosineRestarts",
    "CosineDecay": "Cosine",
    "CosineDecayRestarts": "CosineRestarts",
    "CosineEmbeddingLoss": "CosineSimilarity, which is minus the cosine",
    "CrossEntropyLoss": "SoftmaxCrossEntropy",
    "CyclicLR": "Cyclic",
    "DataLoader": "ArrayLoader",
    "DataParallel": "singanet.parallel.AllReduce(optimizer)",
    "Dropout1d": "SpatialDropout",
    "Dropout2d": "SpatialDropout",
    "Dropout3d": "SpatialDropout",
    "ELU": "Activation('name', 'elu')",
    "EinsumDense": "Einsum of the input and a Weight",
    "EmbeddingBag": "Embedding and Reduce('sum', 'mean', axis=1)",
    "ExponentialDecay": "Exponential",
    "ExponentialLR": "Exponential(decay_steps=1)",
    "F1Score": "F1",
    "FBetaScore": "FBeta",
    "GELU": "Activation('name', 'gelu')",
    "GaussianNLLLoss": "GaussianNLL",
    "GlobalAvgPool": "GlobalAvgPooling",
    "GlobalMaxPool": "GlobalMaxPooling",
    "GroupNormalization": "GroupNorm",
    "GroupQueryAttention": "MultiHeadAttention, with num_kv_heads=",
    "Hardsigmoid": "Activation('name', 'hard_sigmoid')",
    "Hardswish": "Activation('name', 'hard_swish')",
    "Hardtanh": "Clip",
    "HuberLoss": "Huber",
    "Identity": "Dummy",
    "InputLayer": "Input",
    "InstanceNorm1d": "InstanceNorm",
    "InstanceNorm2d": "InstanceNorm",
    "InstanceNorm3d": "InstanceNorm",
    "IoU": "IOU",
    "KLDivLoss": "KLDivergence",
    "L1": "L1Regularizer",
    "L1Loss": "MeanAbsoluteError",
    "L2": "L2Regularizer",
    "LRScheduler": "Schedule",
    "Lamb": "LAMB",
    "LeakyReLU": "Activation('name', 'leaky_relu')",
    "LearningRateSchedule": "Schedule",
    "LearningRateScheduler": "LearningRate",
    "Linear": "Dense",
    "LinearLR": "Polynomial, or WarmUp before another schedule",
    "LocalResponseNorm": "LRN, whose alpha is theirs over the size",
    "LossScaleOptimizer": "MixedPrecision",
    "MAE": "MeanAbsoluteError",
    "MSE": "MeanSquaredError",
    "MSELoss": "MeanSquaredError",
    "MarginRankingLoss": "MarginRanking",
    "MaxPool": "MaxPooling",
    "MeanIoU": "IOU",
    "MeanMetricWrapper": "MeanMetric",
    "Mish": "Activation('name', 'mish')",
    "Module": "Layer",
    "ModuleList": "singanet.FeedForwardNet([layer, ...]), or a list of layers",
    "MultiStepLR": "MultiStep",
    "MultiheadAttention": "MultiHeadAttention",
    "NLLLoss": "CategoricalCrossEntropy, of probabilities",
    "Nadam": "NAdam",
    "OneCycleLR": "OneCycle",
    "PiecewiseConstantDecay": "Chained",
    "PixelShuffle": "Reshape, Permute and Reshape",
    "PoissonNLLLoss": "Poisson",
    "PolynomialDecay": "Polynomial",
    "PolynomialLR": "Polynomial",
    "R2Score": "R2",
    "RMSNormalization": "RMSNorm",
    "RMSprop": "RMSProp",
    "ReLU": "Activation('name', 'relu')",
    "ReLU6": "Activation('name', 'relu6')",
    "ReduceLROnPlateau": "ReduceOnPlateau",
    "ReflectionPad": "Pad(mode='reflect')",
    "ReplicationPad": "Pad(mode='replicate')",
    "Rescaling": "Scale",
    "Resizing": "Resize",
    "SELU": "Activation('name', 'selu')",
    "Model": "singanet.FeedForwardNet(inputs=..., outputs=...)",
    "Sequential": "singanet.FeedForwardNet([layer, ...])",
    "SiLU": "Activation('name', 'silu')",
    "SequentialLR": "Chained",
    "Sigmoid": "Activation('name', 'sigmoid')",
    "SmoothL1Loss": "SmoothL1",
    "Softmax2d": "Softmax",
    "Softplus": "Activation('name', 'softplus')",
    "Softsign": "Activation('name', 'softsign')",
    "SparseCategoricalCrossentropy": "SoftmaxCrossEntropy of scores, or CategoricalCrossEntropy of"
    " probabilities",
    "SparseAdam": "Adam",
    "SparseCategoricalAccuracy": "Accuracy",
    "SparseTopKCategoricalAccuracy": "Accuracy(k)",
    "SpatialDropout1D": "SpatialDropout, with axis=-1 for sequences",
    "SpatialDropout2D": "SpatialDropout",
    "SpatialDropout3D": "SpatialDropout",
    "SquaredHinge": "Hinge(squared=True)",
    "StepLR": "Step",
    "SwapEMAWeights": "EMA",
    "SyncBatchNorm": "BatchNormalization",
    "Tanh": "Activation('name', 'tanh')",
    "TerminateOnNaN": "StopOnNaN",
    "TopKCategoricalAccuracy": "Accuracy(k)",
    "TripletMarginLoss": "TripletMargin",
    "Unflatten": "Reshape",
    "UnitNormalization": "L2Norm",
    "UpSampling": "Upsampling",
    "Upsample": "Upsampling2D, or Resize",
    "UpsamplingNearest2d": "Upsampling2D",
    "ZeroPad": "Pad",
    "ZeroPadding": "Pad",
    "initializer.Identity": "Eye",
    "initializer.Ones": "Constant(1.0)",
    "initializer.RandomNormal": "Gaussian",
    "initializer.RandomUniform": "Uniform",
    "initializer.Zeros": "Constant(0.0)",
    "metric.Mean": "MeanMetric",
}
"""Classes elsewhere, and the ones here; a number of axes may follow, the room may precede."""

_RECORDED = _INSTEAD["use_graph"]
_TIMES = "program = net.record(x, y, optimizer); program.run(x, y, timed=True), then print"
_TIMES += " program.report().table(2)"

_OF_DEVICES = {
    "EnableGraph": _RECORDED,
    "PrintTimeProfiling": _TIMES,
    "ResetGraph": _RECORDED,
    "RunGraph": _RECORDED,
    "SetSkipIteration": _TIMES,
    "SetVerbosity": _TIMES,
    "Sync": "leave it out: a value is computed by the time it is read",
}

_PREPARED = "change the data before they are fed: transforms= of singanet.data.ArrayLoader crop,"
_PREPARED += " flip, resize, colour and erase images"
_ENCODED = "singanet.data.Table encodes columns, Tokenizer texts; numbers are scaled before they"
_ENCODED += " are fed, or by Scale(factor=, offset=)"
_DRAWN = "compute it with operators on symbols and singanet.functional"
_OWN_LOSS = "write singanet.loss.from_function(fn) with singanet.functional"
_COUNTED = "read it off singanet.metric.ConfusionMatrix"
_OWN_METRIC = "derive a metric from singanet.metric.MeanMetric or Metric"
_LOOPED = "use the whole layer, LSTM, GRU or RNN with num_layers=; steps one at a time run by"
_LOOPED += " net.decoder()"
_ATTENDED = "draw MultiHeadAttention, LayerNorm, Dense and Add, as singanet.models does"
_FUNCTION_OF_STEP = "pass any function of the step as learning_rate"

_TOGETHER = {
    _PREPARED: (
        "AugMix AutoContrast CenterCrop ContrastLimitedAdaptiveHistogramEqualization CutMix"
        " Equalization MaxNumBoundingBoxes MelSpectrogram MixUp Pipeline RandAugment"
        " RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop"
        " RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale"
        " RandomHue RandomInvert RandomPerspective RandomPosterization RandomRotation"
        " RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom"
        " STFT STFTSpectrogram Solarization"
    ),
    _ENCODED: (
        "CategoryEncoding Discretization HashedCrossing Hashing IntegerLookup Normalization"
        " StringLookup TextVectorization"
    ),
    _DRAWN: (
        "ActivityRegularization AdditiveAttention Bilinear ChannelShuffle Hardshrink Lambda"
        " LogSigmoid PairwiseDistance PixelUnshuffle Softmin Softshrink Tanhshrink Threshold"
    ),
    _LOOPED: "GRUCell LSTMCell RNNBase RNNCell RNNCellBase SimpleRNNCell StackedRNNCells",
    "draw it step by step with Conv2D and singanet.functional": (
        "ConvLSTM1D ConvLSTM2D ConvLSTM3D"
    ),
    _ATTENDED: (
        "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder"
        " TransformerEncoderLayer"
    ),
    _OWN_LOSS: (
        "CategoricalGeneralizedCrossEntropy Circle HingeEmbeddingLoss LogCosh"
        " MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss SoftMarginLoss"
        " TripletMarginWithDistanceLoss"
    ),
    f"as a loss, {_OWN_LOSS}; as a metric, {_OWN_METRIC}": (
        "CategoricalHinge LogCoshError MeanAbsolutePercentageError MeanSquaredLogarithmicError"
    ),
    _COUNTED: (
        "BinaryIoU FalseNegatives FalsePositives OneHotIoU OneHotMeanIoU TrueNegatives"
        " TruePositives"
    ),
    _OWN_METRIC: (
        "ConcordanceCorrelation PearsonCorrelation PrecisionAtRecall RecallAtPrecision"
        " SensitivityAtSpecificity SpecificityAtSensitivity Sum"
    ),
    _FUNCTION_OF_STEP: "ChainedScheduler ConstantLR InverseTimeDecay LambdaLR MultiplicativeLR",
    "it has no counterpart: derive a layer from singanet.layers.Layer": (
        "MaxUnpool1d MaxUnpool2d MaxUnpool3d Fold Unfold FractionalMaxPool2d"
        " FractionalMaxPool3d LPPool1d LPPool2d LPPool3d RReLU SpectralNormalization"
        " FeatureAlphaDropout UpsamplingBilinear2d"
        " CrossMapLRN2d GaussianDropout AdaptiveLogSoftmaxWithLoss"
    ),
    (
        "derive a layer from singanet.layers.Layer, or export the model to ONNX and load it "
        "with singanet.onnx.load"
    ): "FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper",
    "in a Layer call self.add_param(suffix, shape) or self.add_state; on symbols, Weight": (
        "Buffer Parameter ParameterDict ParameterList ModuleDict Container"
    ),
    "derive a callback from singanet.training.callbacks.Callback": (
        "CallbackList LambdaCallback OrbaxCheckpoint RemoteMonitor"
    ),
    "minimize by several in an Executor": "MultiOptimizer OptimizerMap",
    "it has no counterpart; EMA averages as ASGD does": "ASGD Ftrl LBFGS Rprop",
    "derive a Constraint": "MinMaxNorm NonNeg UnitNorm",
}
"""By advice: classes elsewhere without a counterpart of one name."""

_GONE = {
    **{name: advice for advice, names in _TOGETHER.items() for name in names.split()},
    **_OF_DEVICES,
    "InputSpec": "leave it out: `setup(in_shape)` of a layer checks the shape",
    "History": "net.fit returns it: history = net.fit(x, y)",
    "L1L2": "pass one of L1Regularizer and L2Regularizer",
    "OrthogonalRegularizer": "derive a Regularizer",
    "ProgbarLogger": "leave it out: fit(verbose=True) shows a bar",
    "ReversibleEmbedding": "share the table: Dense(units, W_transpose=True,"
    " W_specs=embedding.params['weight'])",
    "CaffeConverter": "convert the net to ONNX, and load it with singanet.onnx.load(path)",
    "DistOpt": "write singanet.parallel.AllReduce(sgd), or SparseAllReduce(sgd, ratio=0.05),"
    " PartialUpdate(sgd), AllReduce(sgd, dtype='float16')",
    "HetuConfig": "leave it out: Executor takes device= and parallel=, an Embedding its cache=",
    "Snapshot": "use net.save(path) and net.load(path), or write_state and open_state",
    "Tensor": "leave it out: arrays are NumPy's or CuPy's",
    "Variable": "write Input(name, sample_shape) for inputs; parameters belong to layers",
    "autograd": "leave it out: net.step trains, net.gradients(ys, xs, x) are gradients of anything",
    "create_cpu_device": "write singanet.device.cpu()",
    "create_cuda_gpu": "write singanet.device.cuda(0)",
    "create_cuda_gpu_on": "write singanet.device.cuda(index)",
    "dataloader_op": "write singanet.executor.from_loader(loader)",
    "gpu": "write singanet.device.cuda(index)",
    "opt": "it is singanet.optimizer",
    "scheduler_init": "leave it out: singanet launch --servers 1 script.py starts all processes",
    "server_init": "leave it out: singanet launch --servers 1 script.py starts the servers",
    "snapshot": "use net.save(path) and net.load(path); of arrays without a net"
    " singanet.checkpoint.write_state and open_state",
    "sonnx": "use singanet.onnx.load(path) and singanet.onnx.save(net, path)",
    "tensor": "leave it out: arrays are NumPy's or CuPy's, which numpy.asarray makes",
    "worker_finish": "leave it out: a process that singanet launch started ends with its script",
    "worker_init": "leave it out: singanet launch -n 2 --servers 1 script.py starts all processes",
}
"""Functions and modules elsewhere that have no counterpart of one name, and what to do here."""

_FUNCTIONS = {
    "abs(x)": "absolute fabs",
    "concatenate(arrays, axis)": "cat concat hstack vstack column_stack",
    "max(x, axis)": "amax reduce_max",
    "min(x, axis)": "amin reduce_min",
    "sum(x, axis)": "reduce_sum",
    "mean(x, axis)": "reduce_mean average",
    "sqrt(var(x, axis))": "std",
    "sqrt(sum(square(x), axis)), or singanet.layers.L2Norm of the last axis": "norm normalize",
    "clip(x, low, high)": "clamp clip_by_value",
    "expand_dims(x, axis)": "unsqueeze",
    "transpose(x, axes)": "permute swapaxes moveaxis",
    "reshape(x, shape)": "view ravel flatten",
    "split(x, sections, axis)": "unstack unbind chunk array_split",
    "a + b": "add",
    "a - b": "subtract sub",
    "a * b": "multiply mul",
    "a / b": "divide true_divide div",
    "-a": "negative neg",
    "a ** b": "power pow",
    "1 / x": "reciprocal",
    "1 / sqrt(x)": "rsqrt",
    "a < b, <=, > and >=; equal for ==": (
        "greater greater_equal less less_equal not_equal gt ge lt le eq ne"
    ),
    "sum(a * b, axis), matmul or einsum": "dot vdot tensordot inner outer bmm mm",
    "the attribute x.shape, without the batch": "shape size ndim",
    "x.astype('float') or x.astype('int64') of a symbol": "cast convert_to_tensor to_float",
    "singanet.layers.TopIndices('i', 1, axis)(x), the indices of the largest": (
        "argmax argmin top_k topk argsort sort"
    ),
    "singanet.layers.Gather('g', axis)(x, indices), or take(x, indices, axis)": (
        "take_along_axis gather index_select"
    ),
    "equal(expand_dims(labels, -1), numpy.arange(classes))": "one_hot",
    "singanet.layers.StopGradient()(x)": "stop_gradient detach",
    "singanet.layers.Expand('e', shape)(x); operators broadcast": (
        "tile repeat broadcast_to expand"
    ),
    "singanet.layers.Pad('p', widths)(x)": "pad",
    "NumPy's: arrays beside symbols are constants": (
        "arange array empty eye full full_like identity linspace logspace ones ones_like tri tril"
        " triu zeros zeros_like"
    ),
    "a class of singanet.loss": (
        "binary_crossentropy categorical_crossentropy sparse_categorical_crossentropy"
        " cross_entropy binary_cross_entropy mse_loss nll_loss l1_loss kl_div"
        " binary_cross_entropy_with_logits ctc_loss ctc_decode"
    ),
    "a class of singanet.layers": (
        "average_pool max_pool conv conv_transpose depthwise_conv separable_conv"
        " batch_normalization layer_normalization rms_normalization dropout embedding linear glu"
        " interpolate adaptive_average_pool adaptive_max_pool layer_norm max_pool2d avg_pool2d"
        " conv1d conv2d"
    ),
}
"""By expression here: functions of arrays elsewhere that `singanet.functional` does not have."""


@cache
def _functions() -> dict[str, str]:
    """Return what to write in place of each function of arrays elsewhere."""
    operations = import_module("singanet.layers.elementwise").OPERATIONS
    activations = import_module("singanet.ops.interface").ACTIVATIONS
    found = {name: f"write singanet.layers.Operation(mode={name!r})(x)" for name in operations}
    found |= {f"arc{name[1:]}": said for name, said in found.items() if name[1:] in found}
    found |= {name: f"write singanet.layers.Activation({name!r})(x)" for name in activations}
    found["swish"] = found["silu"]
    return found | {
        name: f"write {said}" for said, names in _FUNCTIONS.items() for name in names.split()
    }


_MODES = "net.forward(False, x) is evaluation, net.forward(True, x) is training"
_ZERO_GRAD = "leave it out: gradients are freed after each update"
_SENT = "wrap it once, then call net.step(x, y, optimizer): singanet.parallel."

_ATTRIBUTES = {
    "Dataset": {
        f"{letter}_{part}": f"it is {letter.lower()}_{part} here"
        for letter in "XY"
        for part in ("train", "test")
    },
    "Device": _OF_DEVICES,
    "Executor": {
        "batch_num": "call executor.batches(name)",
        "comm_mode": "look at the argument parallel=, or the optimizer of minimize",
        "eval_node_list": "pass run(name, feed, outputs), or name a program of these outputs",
        "get_batch_num": "call executor.batches(name)",
        "param_nodes": "executor.net.params() lists the parameters",
        "subexecutor": "executor.programs lists the programs, executor.run(name, feed) runs one",
        "topo_order": "executor.net.layers are in topological order",
    },
    "FeedForwardNet": {
        "count_params": "net.summary() counts, sum(v.size for v in net.param_values()) too",
        "dst_of_layer": "write [n.name for n in net.nodes() for source, _ in n.inputs if"
        " source.name == 'conv1']",
        "eval": _MODES,
        "get_layer": "write net['name']",
        "get_params": "{p.name: p.value for p in net.params()} are they",
        "get_weights": "net.param_values() are the arrays, net.param_names() their names",
        "graph": _RECORDED,
        "history": "net.fit returns it: history = net.fit(x, y)",
        "load_state_dict": "net.load(path) reads them from a file",
        "load_model": "singanet.load_model(path) makes the net of a file, net.load(path) reads"
        " weights",
        "load_states": "net.load(path) reads them",
        "load_weights": "net.load(path) reads them",
        "optimizer": "keep the optimizer that you pass to net.compile(optimizer, loss)",
        "ordered_layers": "net.layers are in topological order",
        "parameters": "net.params() lists them",
        "save_states": "net.save(path) writes them",
        "save_weights": "net.save(path) writes them",
        "set_weights": "net.set_params({name: array}) copies them in, and"
        " {p.name: p.value for p in other.params()} are another net's",
        "src_of_layer": "write {n.name: [source.name for source, _ in n.inputs] for n in"
        " net.nodes()}",
        "state_dict": "net.save(path) writes them, {p.name: p.value for p in net.params()} are"
        " they",
        "to": "net.to_device(device) moves the net, net.as_type(type) converts it",
        "topo_sort": "net.ordered() is sorted, net.layers too",
        "train_one_batch": "call net.step(x, y, optimizer), or net.train(x, y) for the gradients",
        "trainable_weights": "net.params() lists them; param.trainable is the flag",
        "verbose": "leave it out: nothing is printed; net.summary() is a table, callbacks look on",
        "weights": "net.params() lists them",
        "zero_grad": _ZERO_GRAD,
    },
    "History": {
        "epoch": "the numbers are history.epochs",
        "history": "it is the dict itself: history['loss']",
        **{
            name: f"write history[{name!r}]"
            for name in ("loss", "accuracy", "val_loss", "val_accuracy", "lr")
        },
    },
    "Optimizer": {
        "backward_and_partial_update": f"{_SENT}PartialUpdate(sgd)",
        "backward_and_sparse_update": f"{_SENT}SparseAllReduce(sgd, ratio=0.05)",
        "backward_and_update": f"{_SENT}AllReduce(sgd)",
        "backward_and_update_half": f"{_SENT}AllReduce(sgd, dtype='float16')",
        "step": "call net.step(x, y, optimizer), which computes gradients and updates the net",
        "zero_grad": _ZERO_GRAD,
    },
    "Reducer": {
        "corr": "SparseAllReduce and PowerSGD have it, as error_feedback",
        "error_feedback": "SparseAllReduce and PowerSGD have it, others send all",
        "global_rank": "it is optimizer.comm.rank",
        "learning_rate": "the rule has it: optimizer.optimizer.learning_rate",
        "local_rank": "the launcher's variables have it; optimizer.comm.rank counts all processes",
        "spars": "it is ratio, or threshold, of SparseAllReduce",
        "world_size": "it is optimizer.comm.size",
    },
}
"""By class: attributes elsewhere, and what to do here."""
_ATTRIBUTES["Wrapper"] = _ATTRIBUTES["Optimizer"]


@cache
def _of_symbols() -> dict[str, str]:
    """Return the methods of tensors elsewhere, and what to write of symbols."""
    names = import_module("singanet.functional").__all__
    own = {name: f"write singanet.functional.{name}(x, ...)" for name in names}
    kinds = {"float": "float", "long": "int64", "int": "int64", "to": "float", "type": "float"}
    others = {
        name: f"write singanet.functional.{said[6:]}" if said[6:].split("(")[0] in own else said
        for name, said in _functions().items()
    }
    return {
        **others,
        **own,
        **{name: f"write x.astype({kind!r})" for name, kind in kinds.items()},
        "T": "write singanet.functional.transpose(x), which turns the batch axis too",
        "dtype": "it is x.kind, 'floats' or 'integers'; the net sets the type",
        "numpy": "a symbol has no values: call net.predict or net.forward",
    }


def advice_on(unknown: str, names: Collection[str]) -> str:
    """Return advice on the unknown argument ``unknown`` of a constructor that has ``names``."""
    for here in (aliases(tuple(names)).get(unknown, ""), *_CALLED.get(unknown, ())):
        if here in names:
            return f"it is called {here} here"
    return _INSTEAD.get(unknown) or did_you_mean(unknown, names, "leave it out")


_CALLS = {
    "attention_mask": "pass it last: MultiHeadAttention(heads, mask='boolean')(query, value, mask)",
    "initial_state": "pass the states behind the sequence: LSTM(units)(x, h, c)",
    "key": "pass symbols in the order query, value, key",
    "key_padding_mask": "pass the number of valid keys of each sample last, or mask='boolean'",
    "mask": "assign x.mask = mask, or pass it last: LSTM(units)(x, mask)",
    "query": "pass symbols in the order query, value, key",
    "return_attention_scores": "pass return_weights=True to the constructor",
    "training": f"leave it out: {_MODES}",
    "use_causal_mask": "pass causal=True to the constructor",
    "value": "pass symbols in the order query, value, key",
}
"""Arguments of a call of a layer elsewhere, and what to do here."""


def expect_no_words(where: str, words: Collection[str]) -> None:
    """Raise `ArgumentError` if a layer or net is called on symbols with the arguments ``words``."""
    for word in words:
        raise ArgumentError(
            where,
            expected="symbols alone, in order",
            received=f"{word}=",
            advice=_CALLS.get(word, "pass settings to the constructor, and symbols in order"),
        )


def advice_on_none(called: str) -> str:
    """Return advice on a call without arguments that another library has; "" for none."""
    return f"leave it out: {_MODES}" if called == "net.train" else ""


class NoAttributeError(UnknownNameError, AttributeError):
    """An unknown attribute, also for `hasattr`; the message has its name in this library."""


class NoEntryError(UnknownNameError, KeyError):
    """A missing entry of a dict; a user's own code may look for a KeyError."""

    __str__ = Exception.__str__


class NoNameError(UnknownNameError, ImportError):
    """An unknown name in an import; the message has its name in this library."""


_ROOMS = ("layers", "loss", "metric", "optimizer", "training.callbacks", "data", "initializer")
"""The rooms whose classes are looked for by the name of the package or of another room."""


def names_of(
    room: str, names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module ``room`` with the public ``names``."""
    own = room.removeprefix("singanet.")

    @entry_point
    def missing(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        stem = name.rstrip("dD").rstrip("0123456789")
        here = _NAMES.get(f"{own}.{name}") or _NAMES.get(name) or _NAMES.get(stem)
        if (
            here is not None
            and name not in _NAMES
            and f"{here}{name[len(stem) :].upper()}" in names
        ):
            here += name[len(stem) :].upper()
        home = _home_of(here or name) if here not in names else None
        near = did_you_mean(name, names, "")
        gone = _functions().get(name) if own == "functional" else _GONE.get(name)
        instead = gone or near or "see its __all__"
        known = (here or home) is not None or gone is not None
        error: type[UnknownNameError] = NoAttributeError
        # After an AttributeError Python looks for a submodule, and then names only the file.
        if (known or near) and _is_imported() and find_spec(f"{room}.{name}") is None:
            error = NoNameError
        raise error(
            room,
            expected=f"a name of {len(names)}, which dir({room}) lists",
            received=brief(name),
            advice=f"it is {home or f'{here} here'}" if here or home else instead,
        )

    return missing, lambda: sorted(names)


def _home_of(name: str) -> str | None:
    """Return the full name of the class ``name`` of another room; None if there is none."""
    for room in _ROOMS if name[:1].isupper() else ():
        if name in import_module(f"singanet.{room}").__all__:
            return f"singanet.{room}.{name}"
    return None


def _is_imported() -> bool:
    """Return whether ``from room import name`` called the module's `__getattr__`."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("singanet.base."):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_handle_fromlist"


@entry_point
def missing_attribute(thing: object, name: str) -> Any:
    """The ``__getattr__`` of a class in `_ATTRIBUTES`."""
    expect_here(thing, name)
    # Raises Python's own error, or the error of a property that has failed.
    return object.__getattribute__(thing, name)


def expect_here(thing: object, name: str) -> None:
    """Raise `NoAttributeError` if another library has ``name`` for an attribute of ``thing``."""
    for kind in type(thing).__mro__:
        known = _of_symbols() if kind.__name__ == "Symbol" else _ATTRIBUTES.get(kind.__name__, {})
        if name in known:
            raise NoAttributeError(
                type(thing).__name__,
                expected="an existing attribute",
                received=f".{name}",
                advice=known[name],
            )


def names_when_asked(
    room: str, names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of the package ``room``, with public ``names``.

    The module of each name comes from the package's file: its imports under ``if TYPE_CHECKING:``,
    which editors and type checkers read too. So three of fifty layers import three modules.
    """
    missing, listed = names_of(room, names)

    @entry_point
    def find(name: str) -> Any:
        place, own = _places(room).get(name, ("", ""))
        if not place:
            return missing(name)
        # If the place is the room itself, the name is a module.
        with no_collections():
            module = import_module(f"{room}.{name}" if place == room else place)
        found = module if place == room else getattr(module, own)
        # Cached, so that `__getattr__` is not called again.
        setattr(sys.modules[room], name, found)
        return found

    return find, listed


@cache
def _places(room: str) -> dict[str, tuple[str, str]]:
    """Return module and name there of each name that ``room`` imports for type checkers."""
    source = pkgutil.get_data(room, "__init__.py") or b""
    return {
        name.asname or name.name: (node.module, name.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }


def is_library(kind: type) -> bool:
    """Return whether the class is singanet's."""
    return kind.__module__.partition(".")[0] == "singanet"


def public_classes(room: Any, base: type, names: Iterable[str] | None = None) -> dict[str, type]:
    """Return the subclasses of ``base`` in the package ``room`` by their own names.

    ``names`` are some of the package's, so that the modules of others are not imported.
    """
    found = {name: getattr(room, name) for name in (room.__all__ if names is None else names)}
    # Python 3.10 takes list[int] for an instance of type.
    classes = {name: v for name, v in found.items() if issubclass(type(v), type)}
    return {
        name: kind
        for name, kind in classes.items()
        if issubclass(kind, base) and kind.__name__ == name
    }
