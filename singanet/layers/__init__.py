"""The layers, one a file."""

from singanet.layers.activation import Activation
from singanet.layers.avg_pooling2d import AvgPooling2D
from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.concat import Concat
from singanet.layers.conv2d import Conv2D
from singanet.layers.dense import Dense
from singanet.layers.dropout import Dropout
from singanet.layers.dummy import Dummy
from singanet.layers.embedding import Embedding
from singanet.layers.flatten import Flatten
from singanet.layers.layer import Layer
from singanet.layers.max_pooling2d import MaxPooling2D
from singanet.layers.merge import Merge
from singanet.layers.slice import Slice
from singanet.layers.softmax import Softmax
from singanet.layers.split import Split

__all__ = [
    "Activation",
    "AvgPooling2D",
    "BatchNormalization",
    "Concat",
    "Conv2D",
    "Dense",
    "Dropout",
    "Dummy",
    "Embedding",
    "Flatten",
    "Layer",
    "MaxPooling2D",
    "Merge",
    "Slice",
    "Softmax",
    "Split",
]
