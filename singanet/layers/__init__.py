"""The layers, one a file."""

from singanet.layers.activation import Activation
from singanet.layers.add import Add
from singanet.layers.average import Average
from singanet.layers.avg_pooling2d import AvgPooling2D
from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.concat import Concat
from singanet.layers.conv2d import Conv2D
from singanet.layers.dense import Dense
from singanet.layers.dropout import Dropout
from singanet.layers.dummy import Dummy
from singanet.layers.embedding import Embedding
from singanet.layers.end_padding import EndPadding
from singanet.layers.flatten import Flatten
from singanet.layers.global_avg_pooling1d import GlobalAvgPooling1D
from singanet.layers.global_avg_pooling2d import GlobalAvgPooling2D
from singanet.layers.global_max_pooling1d import GlobalMaxPooling1D
from singanet.layers.global_max_pooling2d import GlobalMaxPooling2D
from singanet.layers.gru import GRU
from singanet.layers.input import Input
from singanet.layers.layer import Layer
from singanet.layers.lstm import LSTM
from singanet.layers.max_pooling2d import MaxPooling2D
from singanet.layers.maximum import Maximum
from singanet.layers.merge import Merge
from singanet.layers.multiply import Multiply
from singanet.layers.pad import Pad
from singanet.layers.permute import Permute
from singanet.layers.reshape import Reshape
from singanet.layers.rnn import RNN
from singanet.layers.slice import Slice
from singanet.layers.softmax import Softmax
from singanet.layers.split import Split

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Add",
    "Average",
    "AvgPooling2D",
    "BatchNormalization",
    "Concat",
    "Conv2D",
    "Dense",
    "Dropout",
    "Dummy",
    "Embedding",
    "EndPadding",
    "Flatten",
    "GlobalAvgPooling1D",
    "GlobalAvgPooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "Input",
    "Layer",
    "MaxPooling2D",
    "Maximum",
    "Merge",
    "Multiply",
    "Pad",
    "Permute",
    "Reshape",
    "Slice",
    "Softmax",
    "Split",
]
