"""Models that are published: how many parameters they have, and small ones beside transformers."""

import warnings
from math import prod

import pytest

from singanet import pretrained
from singanet.errors import ConfigError
from singanet.saving.nets import distinct_params
from tests.pretrained.published import COUNTS, PUBLISHED

REFUSED = {"tiiuae/falcon-rw-1b": "alibi", "google/gemma-3-4b-it": "model_type"}
"""What is not supported, and the key that says so."""


@pytest.mark.parametrize("name", COUNTS)
def test_their_numbers_of_parameters(name):
    net = pretrained.build(PUBLISHED[name])
    params = distinct_params(net.nodes())
    assert not any(param.filled and param.trainable for param in params)
    assert sum(prod(param.shape) for param in params) == COUNTS[name]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", PUBLISHED)
def test_small_ones_are_those_of_transformers_or_refused(name, tmp_path):
    pytest.importorskip("transformers")
    from tests.pretrained.comparing import apart
    from tests.pretrained.small_models import write_small

    model = write_small(name, tmp_path)
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]):
            pretrained.load(tmp_path)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of a head that the folder does not have
        net = pretrained.load(tmp_path)
    outputs, gradients = apart(net, model, steps=24)
    assert outputs <= 1e-5
    assert max(gradients.values()) <= 1e-4, gradients
