"""Convolutions of few pixels with large weights, as products with the weight where it lies.

oneDNN's convolutions first rearrange the weight, which then takes longer than the convolution.
"""

from __future__ import annotations

from math import prod

from singanet.ops.numpy.windows import Window
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.conv import OneDnnConvolution
from singanet.ops.onednn.matmul import OneDnnProducts
from singanet.types import Array, Shape

_LARGE = {True: 1 << 14, False: 1 << 17}
"""Numbers in a weight from which its rearranging counts, for single pixels and for windows."""

_MOST_COPIED = 1 << 21
"""Numbers in copied windows above which nobody asks: they would leave the cache."""

_FEW_PIXELS = {True: 512, False: 64}
"""Outputs of a channel up to which the product is faster, for single pixels and for windows.

Windows have to be copied out of the images first. For these numbers `net.tune_kernels` measured
vgg11, resnet18, resnet50, googlenet, mobilenet at batch sizes from 1 to 32.
"""

_A_PIXEL = 1 << 13
"""Numbers in a weight for each pixel, at which its gradient is faster as a product.

oneDNN sums it in an order of its own, and rearranges the whole of it at the end.
"""


class OneDnnProductConvolution(OneDnnConvolution, OneDnnProducts):
    """Each kernel of `OneDnnConvolution` where pixels are many, weights small or groups several."""

    def _convolved(
        self, x: Array, weight: Array, bias: Array | None, window: Window, groups: int
    ) -> Array | None:
        out = window.out_size(*x.shape[2:])
        case = Case("forward", x.shape, weight.shape, window, groups)
        if not self._is_product(case, x, len(x) * out[0] * out[1]):
            return super()._convolved(x, weight, bias, window, groups)
        y = self.affine(
            self._windows(x, window), self.ordered(weight).reshape(len(weight), -1).T, bias
        )
        return y.reshape(len(x), *out, len(weight)).transpose(0, 3, 1, 2)

    def _data_gradient(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int
    ) -> Array | None:
        n, f, h, w = dy.shape
        case = Case("data", x_shape, weight.shape, window, groups)
        if not (_is_plain(window) and self._is_product(case, dy, n * h * w)):
            return super()._data_gradient(dy, weight, x_shape, window, groups)
        slopes = self.channels_last(dy).reshape(-1, f)
        dx = self.matmul(slopes, self.ordered(weight).reshape(f, -1))
        return dx.reshape(n, h, w, -1).transpose(0, 3, 1, 2)

    def _weight_gradient(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int
    ) -> Array | None:
        n, f, h, w = dy.shape
        case = Case("weights", x.shape, weight_shape, window, groups)
        if not self._is_product(case, x, n * h * w):
            return super()._weight_gradient(x, dy, weight_shape, window, groups)
        slopes = self.channels_last(dy).reshape(-1, f)
        return self.matmul(slopes.T, self._windows(x, window)).reshape(weight_shape)

    def _is_product(self, case: Case, x: Array, pixels: int) -> bool:
        if case.groups > 1 or not pixels or not self.serves(1, x):
            return False
        size, plain = prod(case.weight), _is_plain(case.window)
        copied = 0 if plain else pixels * size // case.weight[0]
        single = case.window.kernel == (1, 1)
        few = pixels <= _FEW_PIXELS[single] and size >= _LARGE[single]
        few = few or (case.kernel == "weights" and pixels <= size // _A_PIXEL)
        open_to_it = few or copied <= _MOST_COPIED
        return open_to_it and self.takes("product", case, few)

    def _windows(self, x: Array, window: Window) -> Array:
        """What each output sees, (N·H'·W', C·kh·kw); a view where that is a pixel each."""
        if _is_plain(window):
            return self.channels_last(x).reshape(-1, x.shape[1])
        full = self.padded(x, window.pads)
        n, c = x.shape[:2]
        by_n, by_h, by_w, by_c = full.strides
        (sh, sw), (dh, dw) = window.stride, window.dilation
        shape = (n, *window.out_size(*x.shape[2:]), c, *window.kernel)
        strides = (by_n, by_h * sh, by_w * sw, by_c, by_h * dh, by_w * dw)
        seen = self.xp.lib.stride_tricks.as_strided(full, shape, strides)
        rows: Array = self.xp.ascontiguousarray(seen)
        return rows.reshape(shape[0] * shape[1] * shape[2], -1)


def _is_plain(window: Window) -> bool:
    """Whether every output sees just its own pixel."""
    return window == Window((1, 1), (1, 1), ((0, 0), (0, 0)), window.dilation)
