"""Keras' arguments for the settings of a layer's parameters, for type checkers.

A constructor that ends in ``**words: Unpack[KernelAndBias]`` receives none of them: they become
entries of the specs ``W_specs`` and ``b_specs``, see `singanet.base.words.PARTS`.
"""

from __future__ import annotations

from typing import Any, TypedDict


class KernelWords(TypedDict, total=False):
    """Settings of a weight: ``init``, ``regularizer`` and ``constraint`` of ``W_specs``."""

    kernel_initializer: Any
    kernel_regularizer: Any
    kernel_constraint: Any


class BiasWords(TypedDict, total=False):
    """Settings of a bias, for ``b_specs``."""

    bias_initializer: Any
    bias_regularizer: Any
    bias_constraint: Any


class KernelAndBias(KernelWords, BiasWords):
    """Settings of a weight and a bias."""


class EmbeddingsWords(TypedDict, total=False):
    """Settings of a table, for ``W_specs``."""

    embeddings_initializer: Any
    embeddings_regularizer: Any
    embeddings_constraint: Any


class GammaWords(TypedDict, total=False):
    """Settings of a scale, for ``gamma_specs``."""

    gamma_initializer: Any
    gamma_regularizer: Any
    gamma_constraint: Any


class BetaWords(TypedDict, total=False):
    """Settings of an offset, for ``beta_specs``."""

    beta_initializer: Any
    beta_regularizer: Any
    beta_constraint: Any


class GammaAndBeta(GammaWords, BetaWords):
    """Settings of a scale and an offset."""


class AlphaWords(TypedDict, total=False):
    """Settings of a slope, for ``a_specs``."""

    alpha_initializer: Any
    alpha_regularizer: Any
    alpha_constraint: Any


class DepthwiseWords(BiasWords, total=False):
    """Settings of the weight of a depthwise convolution, and its bias."""

    depthwise_initializer: Any
    depthwise_regularizer: Any
    depthwise_constraint: Any


class SeparableWords(DepthwiseWords, total=False):
    """Settings of the two weights of a separable convolution and its bias."""

    pointwise_initializer: Any
    pointwise_regularizer: Any
    pointwise_constraint: Any


class RecurrentWords(KernelWords, BiasWords, total=False):
    """Settings of the two weights and the input's bias of recurrent layers, for ``param_specs``."""

    recurrent_initializer: Any
    recurrent_regularizer: Any
    recurrent_constraint: Any
