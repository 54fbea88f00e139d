"""Loads the net that ``singanet serve`` serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from singanet import pretrained
from singanet.commands.runs.published import (
    drawn_net,
    ends_of,
    expect_causal,
    is_published,
    model_in,
    tokenizer_for,
)
from singanet.commands.runs.run_options import refusal
from singanet.commands.runs.trained import (
    OF_SENTENCES,
    embeddings,
    has_embeddings,
    is_run,
    is_whole,
    whole_net,
)
from singanet.commands.serving.app import Limits, Served
from singanet.commands.serving.batches import BatchQueue
from singanet.commands.serving.requests import TextRequests
from singanet.commands.serving.scheduler import Scheduler
from singanet.loss import SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.pretrained.headed import labels_of
from singanet.pretrained.heads import SEQUENCE
from singanet.pretrained.source import folder_of
from singanet.types import Array


def load(path: str, limits: Limits) -> Served:
    """Load the published model, run or file of a whole net at ``path``, and begin to serve it.

    Errors: another file; the errors of its reader.
    """
    if is_run(path) or is_whole(path):
        net: Any = whole_net(path)
        return Served(Path(path).resolve().name, predict=_predictions(net, limits))
    place = folder_of(path)
    if not is_published(place):
        expected = "a run folder, a published model, or the file of a whole net"
        advice = "pass a RUN_DIR, the folder of a model, or net.onnx"
        raise refusal(f"{path!r}", expected, "another file", advice)
    model = model_in(place)
    # A drawn net tells the kind of the model without its arrays.
    drawn, name = drawn_net(model, ["input_ids"]), Path(path).resolve().name
    if drawn.ports().inputs == ["pixel_values"]:
        return Served(name, predict=_predictions(pretrained.load(model), limits))
    of_sentences, of_classes = has_embeddings(drawn), drawn.head == SEQUENCE
    if not of_sentences and not of_classes:
        expect_causal(drawn, place)
    inputs = OF_SENTENCES if of_sentences or of_classes else ["input_ids"]
    net = pretrained.load(model, inputs=inputs)
    tokenizer = tokenizer_for(net, model)
    words = int(net.config["vocab_size"])
    texts = TextRequests(name, tokenizer, words, net.most_steps, limits.queue)
    if of_sentences or of_classes:

        def embedded(inputs: list[Any]) -> list[Array]:
            rows = [np.array(ids) for ids_of_one in inputs for ids in ids_of_one]
            cuts = np.cumsum([len(each) for each in inputs])[:-1]
            return np.split(embeddings(net, tokenizer, rows), cuts)

        queue = BatchQueue(embedded, lambda _: None, len, most_waiting=limits.queue)
        if of_sentences:
            return Served(name, texts, embed=queue)
        if not isinstance(net.loss, SoftmaxCrossEntropy):
            expected, advice = "a model that gives each text one class", "pass another model"
            received = str(net.config.get("problem_type") or "one that gives it a score")
            raise refusal(f"model {path!r}", expected, received, advice)
        return Served(name, texts, predict=queue, classes=tuple(labels_of(net.config)))
    scheduler = Scheduler(net, tokenizer, limits.together, limits.queue)
    return Served(name, texts, scheduler, ends=ends_of(net, tokenizer))


def _predictions(net: FeedForwardNet, limits: Limits) -> BatchQueue:
    predictor = net.predictor()

    def predicted(inputs: list[Any]) -> list[Any]:
        if len(inputs) == 1:
            return [predictor(inputs[0])]
        counts = [_rows(x) for x in inputs]
        cuts = np.cumsum(counts)[:-1]
        if isinstance(inputs[0], dict):
            joined: Any = {k: np.concatenate([x[k] for x in inputs]) for k in inputs[0]}
        else:
            joined = np.concatenate(inputs)
        made = predictor(joined)
        if not isinstance(made, dict):
            return np.split(made, cuts)
        parts = {k: np.split(v, cuts) for k, v in made.items()}
        return [{k: v[n] for k, v in parts.items()} for n in range(len(inputs))]

    return BatchQueue(predicted, _form, _rows, most_waiting=limits.queue)


def _form(x: Any) -> Any:
    """Return what inputs have in common that are predicted together."""
    if isinstance(x, dict):
        # Inputs of different numbers of rows fail alone.
        rows = {len(v) for v in x.values()}
        return (len(rows) == 1 or object(), *((k, v.shape[1:], v.dtype) for k, v in x.items()))
    return x.shape[1:], x.dtype


def _rows(x: Any) -> int:
    return len(next(iter(x.values())) if isinstance(x, dict) else x)
