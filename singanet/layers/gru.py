"""The gated recurrent unit layer."""

from __future__ import annotations

from singanet.layers.recurrent_params import RNNSpecs
from singanet.layers.rnn import RNN
from singanet.types import Shapes


class GRU(RNN):
    """`RNN` with ``rnn_mode='gru'``: gates r, z, n, the reset gate behind the matrix; state h."""

    def __init__(
        self,
        name: str,
        hidden_size: int,
        dropout: float = 0.0,
        num_stacks: int = 1,
        input_mode: str = "linear",
        bidirectional: bool = False,
        param_specs: RNNSpecs = None,
        input_sample_shape: Shapes | None = None,
        *,
        return_sequences: bool = True,
        return_state: bool = False,
    ) -> None:
        super().__init__(
            name,
            hidden_size,
            "gru",
            dropout,
            num_stacks,
            input_mode,
            bidirectional,
            param_specs,
            input_sample_shape,
            return_sequences=return_sequences,
            return_state=return_state,
        )
