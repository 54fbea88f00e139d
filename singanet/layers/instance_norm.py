"""Instance normalisation."""

from __future__ import annotations

from typing import Any

from singanet.layers.group_norm import GroupNorm
from singanet.layers.layer import ParamSpecs
from singanet.types import Shape, Shapes


class InstanceNorm(GroupNorm):
    """Each channel of each sample normalised over its positions: a group for every channel.

    Samples are (C, positions...). Ulyanov et al., 2016.
    """

    def __init__(
        self,
        name: str,
        epsilon: float = 1e-5,
        affine: bool = True,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_sample_shape: Shape | None = None,
    ) -> None:
        super().__init__(
            name,
            epsilon=epsilon,
            affine=affine,
            gamma_specs=gamma_specs,
            beta_specs=beta_specs,
            input_sample_shape=input_sample_shape,
        )

    def groups_of(self, channels: int) -> int:
        """One group a channel."""
        return channels

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, positions...), unchanged."""
        if isinstance(in_shapes, list) or len(in_shapes) < 2 or 0 in in_shapes:
            raise self.shape_error(
                "one input of sample shape (channels, positions...)",
                str(in_shapes),
                "a channel of one number would always become 0; use LayerNorm",
            )
        return super().setup(in_shapes)
