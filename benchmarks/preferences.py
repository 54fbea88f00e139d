"""A published language model tuned by preferences (DPO) within a budget, beside trl.

The model has the shape of SmolLM2 and random weights; the answers are lines of plays. Both sides
read the same folder and the same pairs in the same order, each row in a process of its own. Of trl
there are its leanest way, with the reference's log-probabilities computed before the training and
checkpointed blocks, and its usual one, with a second model for the reference. Peaks are above the
interpreter with its libraries, in MB, over reference and training. Seconds are the processor's, the
least of the steps after the first one, and of the whole reference. ``losses`` are those of all
steps: they are to agree.

    python benchmarks/preferences.py [--size 135m|30m|small] [--threads 1] [--pairs 4] [--steps 4]
                                     [--budget 1.5GB] [--rules SGD AdamW]
"""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from pretrained import alone, config, given_to, made_folder, options, resident
from report import introduction, publish, table

WAYS = (
    ("singanet", "SGD", ""),
    ("trl", "SGD", "lean"),
    ("trl", "SGD", "usual"),
    ("singanet", "AdamW", ""),
    ("trl", "AdamW", "lean"),
)
"""The library, the rule, and how the library trains."""
RATES = {"SGD": 0.02, "AdamW": 1e-5}
LENGTH = 192
"""The most tokens of a text."""


def prepare(folder: str, size: str, rows: int) -> dict[str, Any]:
    """Write a tokenizer and ``rows`` pairs into the folder of the model."""
    import tokenizers

    from singanet.data import plays

    data = plays()
    text = data.decode(data.train)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    kinds = tokenizers.pre_tokenizers
    backend.pre_tokenizer = kinds.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=kinds.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(text.split("\n"), trainer)
    backend.save(str(Path(folder, "tokenizer.json")))
    known = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(known))
    pairs = []
    for k in range(rows):
        # Of any data, such as the usual 100 to 200 tokens.
        prompt, chosen, rejected = (text[1200 * k + 300 * j :][: 130 + 20 * j] for j in range(3))
        pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    Path(folder, "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return {}


def ours(folder: str, rule: str, way: str, pairs: int, steps: int, budget: str) -> dict[str, Any]:
    """The peak, the seconds and the losses of singanet."""
    import numpy as np

    from singanet import pretrained
    from singanet.data import Pairs
    from singanet.loss import DPO
    from singanet.optimizer import SGD, AdamW
    from singanet.training import Callback

    small = config("small") | {"vocab_size": 768}
    warm = pretrained.build(small, inputs=["input_ids", "segments"], seed=0)
    warm = pretrained.preference_net(warm, DPO())
    ids = np.ones((1, 64), np.int32)
    x = {"input_ids": ids, "segments": ids, "labels": ids, "parts": np.ones((1, 2, 64), "f4")}
    warm.step(x, np.zeros((1, 2), np.float32), SGD(lr=0.0))
    del warm
    before = resident("VmRSS")

    class Clock(Callback):
        """Notes losses and times of the steps."""

        def __init__(self) -> None:
            self.losses: list[float] = []
            self.times = [time.process_time()]

        def on_batch_end(self, batch: int, logs: Any) -> None:
            self.losses.append(logs["loss"])
            self.times.append(time.process_time())

    net = pretrained.load(folder, inputs=["input_ids", "segments"], seed=0)
    net = pretrained.preference_net(net, DPO())
    place, tokenizer = Path(folder, "pairs.jsonl"), pretrained.tokenizer(folder)
    loader = Pairs(place, tokenizer, pairs, LENGTH, shuffle=False)
    start = time.process_time()
    loader.refer(net)
    net.programs.clear()
    reference = time.process_time() - start
    rate = RATES[rule]
    # As PyTorch adds its epsilon.
    adam = AdamW(lr=rate, weight_decay=0.0, epsilon_after_correction=True)
    net.compile(SGD(lr=rate) if rule == "SGD" else adam, net.loss)
    clock = Clock()
    net.fit(
        loader,
        steps_per_epoch=steps,
        callbacks=[clock],
        batch_size=pairs,
        memory_budget=budget,
        offload_folder=Path(folder, "offloaded"),
        verbose=False,
    )
    took = [b - a for a, b in pairwise(clock.times)]
    peak = resident("VmHWM") - before
    return {"peak": peak, "s": min(took[1:]), "reference": reference, "losses": clock.losses}


def theirs(folder: str, rule: str, way: str, pairs: int, steps: int, budget: str) -> dict[str, Any]:
    """The peak, the seconds and the losses of trl."""
    import datasets
    import torch
    import transformers
    from trl import DPOConfig, DPOTrainer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    datasets.disable_progress_bars()
    lean = way == "lean"
    given = DPOConfig(
        output_dir=str(Path(folder, "trl")),
        per_device_train_batch_size=pairs,
        learning_rate=RATES[rule],
        optim="sgd" if rule == "SGD" else "adamw_torch",
        weight_decay=0.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        max_steps=steps,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        max_length=LENGTH + 1,
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        gradient_checkpointing=lean,
        precompute_ref_log_probs=lean,
    )
    before = resident("VmRSS")
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        """Notes the times of the steps."""

        def on_step_end(self, *args: Any, **more: Any) -> None:
            times.append(time.process_time())

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = [json.loads(line) for line in Path(folder, "pairs.jsonl").read_text().splitlines()]
    start = time.process_time()
    trainer = DPOTrainer(
        model=model,
        args=given,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
        callbacks=[Clock()],
    )
    reference = time.process_time() - start
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    took = [b - a for a, b in pairwise(times)]
    peak = resident("VmHWM") - before
    found = {"peak": peak, "s": min(took), "losses": losses}
    return found | ({"reference": reference} if lean else {})


JOBS = {"prepare": prepare, "singanet": ours, "trl": theirs}


def main() -> None:
    """Print and publish the table."""
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--budget", default="1.5GB")
    parser.add_argument("--rules", nargs="+", choices=RATES, default=[*RATES])
    given = given_to(parser, JOBS)
    if given is None:
        return
    rows, first = [], {}
    with made_folder(given) as folder:
        sizes = given.pairs * given.steps
        alone(given.threads, "prepare", folder, given.size, sizes, script=__file__)
        for library, rule, way in [each for each in WAYS if each[1] in given.rules]:
            asked = folder, rule, way, given.pairs, given.steps, given.budget
            took = alone(given.threads, library, *asked, script=__file__)
            if "failed" in took:
                rows.append([library, rule, way or given.budget, took["failed"], "", "", "", ""])
                print(*rows[-1], sep=" | ", flush=True)
                continue
            wanted = first.setdefault(rule, took["losses"])
            apart = max(abs(a - b) for a, b in zip(wanted, took["losses"], strict=True))
            rows.append([
                library, rule, way or given.budget, f"{took['peak']:,.0f}", f"{took['s']:.2f}",
                f"{took['reference']:.2f}" if "reference" in took else "",
                " ".join(f"{loss:.5f}" for loss in took["losses"]), f"{apart:.1e}",
            ])  # fmt: skip
            print(*rows[-1], sep=" | ", flush=True)
    head = ["library", "rule", "way", "peak", "s", "reference s", "losses", "apart"]
    ops = os.environ.get("SINGANET_OPS", "default kernels")
    title = f"DPO on a model of {given.size}, {given.pairs} pairs a step, {ops}, " + (
        f"threads: {given.threads}"
    )
    name = f"preferences_{given.size}_{given.threads}t"
    publish(name, title, introduction(__doc__) + "\n\n" + table(head, rows))


if __name__ == "__main__":
    main()
