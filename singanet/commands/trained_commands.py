"""The commands for a trained net: ``evaluate``, ``predict``, ``sample`` and similar ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

Weights: TypeAlias = Annotated[Path, "RUN_DIR|FILE", "a run folder, a model file, or weights"]
Whose: TypeAlias = Annotated[
    str | None, "NAME|RUN_DIR", "the net of the weights, if they are not in the folder of its run"
]
Data: TypeAlias = Annotated[str | None, "DATA", "as for train (default: the data of the run)"]
Target: TypeAlias = Annotated[
    str | None, "COLUMN|FILE.npy", "classes of DATA (default: the column of the run)"
]
Best: TypeAlias = Annotated[bool, "", "use the run's best weights, not its newest"]

Temperature: TypeAlias = Annotated[
    float, "F", "1 samples the net's probabilities, less is safer, 0 is greedy"
]
TopK: TypeAlias = Annotated[int | None, "N", "sample only among the N likeliest (default: all)"]
TopP: TypeAlias = Annotated[
    float | None, "F", "sample among the fewest with this probability, 0 to 1"
]
Seed: TypeAlias = Annotated[int, "N", "number for the random draws"]


def evaluate(
    path: Weights,
    *,
    model: Whose = None,
    data: Data = None,
    target: Target = None,
    best: Best = False,
    json: Annotated[Path | None, "FILE", "write the figures here"] = None,
) -> int:
    """Test a trained net.

    Examples:
      singanet evaluate runs/lenet
      singanet evaluate net.onnx --data unseen.npz --json figures.json
      singanet evaluate runs/iris --data others.csv
    """
    from singanet.commands.runs.recipe import check_writable, write_json
    from singanet.commands.runs.trained import trained

    check_writable(json)
    net, task = trained(path, model, data, best, target)
    if task.metrics is not None:
        net.compile("sgd", metrics=task.metrics)
    result = task.evaluate(net)
    if json is not None:
        figures = {"data": task.name, "test_loss": result.loss}
        write_json(json, {**figures, "test_accuracy": result.metric})
    print(task.report(result))
    return 0


def predict(
    path: Weights,
    *,
    model: Whose = None,
    data: Data = None,
    best: Best = False,
    out: Annotated[
        Path | None, "FILE.csv|FILE.npz", "a row per sample, or arrays (default: print the rows)"
    ] = None,
) -> int:
    """Write the predictions of a trained net.

    The samples are DATA's test samples, or all samples of a table, an .npy file or images, which
    need no labels; an .npz file has them as array x, or x_test. A row has the number or the file of
    a sample, its likeliest class, the probabilities; an .npz file has the arrays prediction and
    class.

    Examples:
      singanet predict runs/lenet --data unseen.npz --out classes.csv
      singanet predict runs/iris --data flowers.csv
    """
    from singanet.commands.runs.predictions import bare_samples, predictions, write_predictions
    from singanet.commands.runs.published import PublishedTexts
    from singanet.commands.runs.recipe import check_target
    from singanet.commands.runs.run_options import refusal
    from singanet.commands.runs.trained import is_whole, trained, whole_net

    if out is not None:
        check_target(out, (".csv", ".npz"))
    x = bare_samples(data)
    samples: Any = x
    names: Sequence[str] = ()
    classes: Sequence[str] = ()
    if x is not None and model is None and is_whole(path):
        net = whole_net(path)
    else:
        net, task = trained(path, model, data if x is None else None, best, labelled=False)
        if isinstance(task, PublishedTexts):
            expected = "a net with a prediction for each sample"
            received = "a tuned language model, with probabilities for each token"
            advice = f"call `singanet generate {path}`, or `singanet evaluate` for its perplexity"
            raise refusal("singanet predict", expected, received, advice)
        classes = task.class_names
        if x is None:
            samples, names = task, task.sample_names
    made = write_predictions(out, net, predictions(net, samples), classes, names)
    if out is not None:
        print(f"{out}: {made[0]:,} predictions of shape {made[1:]}")
    return 0


def sample(
    path: Weights,
    *,
    model: Whose = None,
    data: Data = None,
    best: Best = False,
    prompt: Annotated[
        str | None, "TEXT", "start of the text (default: a new line, if the data have one)"
    ] = None,
    length: Annotated[int, "N", "characters to write"] = 500,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
) -> int:
    """Write text with a trained language model.

    Each character is sampled from the net's probabilities. The same seed gives the same text.

    Examples:
      singanet sample runs/novel --prompt "It was" --temperature 0.7 --seed 1
    """
    from singanet.commands.runs.published import sampled, start_of
    from singanet.commands.runs.run_options import refusal
    from singanet.commands.runs.tasks import Text
    from singanet.commands.runs.trained import trained
    from singanet.decoding import Sampling

    net, task = trained(path, model, data, best)
    if not isinstance(task, Text):
        expected = "a language model, such as char_rnn or transformer_lm"
        raise refusal(f"{str(path)!r}", expected, "another kind of net", "use singanet predict")
    start = start_of(task.data) if prompt is None else prompt
    drawn = sampled(net, task.data, start, length, Sampling(temperature, top_k, top_p), seed)
    print((prompt or "").lstrip("\n"), end="")
    for character in drawn:
        print(character, end="", flush=True)
    print()
    return 0


def generate(
    model: Annotated[
        str,
        "FOLDER|FILE.gguf|OWNER/REPO|RUN_DIR",
        "a published model, its name on the hub, or a run of finetune",
    ],
    prompt: Annotated[str, "TEXT", "the question, or the start of the text"],
    *,
    raw: Annotated[bool, "", "continue the text, without the chat template"] = False,
    system: Annotated[str | None, "TEXT", "system message for the template"] = None,
    length: Annotated[int, "N", "tokens at most"] = 500,
    stop: Annotated[list[str] | None, "TEXT", "end before this text; may be repeated"] = None,
    draft: Annotated[
        str | None,
        "FOLDER|OWNER/REPO",
        "a smaller model with the same tokenizer, for speculative decoding; it does not change the "
        "distribution of the text; the number of accepted tokens is printed at the end",
    ] = None,
    ahead: Annotated[int, "N", "tokens that --draft proposes at a time"] = 4,
    num_beams: Annotated[
        int, "N", "above 1, a beam search in place of draws; the text is printed at its end"
    ] = 1,
    length_penalty: Annotated[
        float, "F", "power of the length that divides the score of a beam"
    ] = 1.0,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: Annotated[
        float | None, "F", "exclude tokens of less than this times the largest probability"
    ] = None,
    repetition_penalty: Annotated[
        float, "F", "above 1, tokens that were used become less likely"
    ] = 1.0,
    no_repeat_ngram_size: Annotated[
        int | None, "N", "write no run of N tokens twice (default: any)"
    ] = None,
    bad_words: Annotated[
        list[str] | None, "TEXT", "do not write this text; may be repeated"
    ] = None,
    guide: Annotated[
        str | None, "REGEX|FILE.json", "an expression, or a JSON schema, that the text matches"
    ] = None,
    seed: Seed = 0,
) -> int:
    """Answer a prompt, or continue it, with a published language model.

    A model with a chat template answers, another one continues. The text is printed as it is
    generated, up to the model's end token. The same seed gives the same text.

    Examples:
      singanet generate runs/tuned "What is the capital of France?" --temperature 0
      singanet generate runs/tuned "Name a color." --guide "red|green|blue"
    """
    from singanet import pretrained
    from singanet.commands.runs.published import (
        draft_for,
        ends_of,
        expect_causal,
        guide_in,
        model_in,
        streamed,
        texts_alone,
        tokenizer_for,
    )
    from singanet.decoding import BeamSearch, Processors, Sampling
    from singanet.pretrained.source import folder_of

    beams = BeamSearch._of(num_beams, length_penalty)
    sampling = Sampling(0.0 if num_beams > 1 else temperature, top_k, top_p, min_p)
    place = model_in(folder_of(model))
    with texts_alone(place):
        net = pretrained.load(place, inputs=["input_ids"])
    expect_causal(net, place)
    tokenizer = tokenizer_for(net, place)
    chats = tokenizer.chat_template is not None and not raw
    turns = [("system", system), ("user", prompt)] if chats else []
    messages = [{"role": role, "content": text} for role, text in turns if text is not None]
    ids = tokenizer.prompt(messages) if chats else tokenizer.encode(prompt)
    ends = ends_of(net, tokenizer)
    helper = None if draft is None else draft_for(tokenizer, draft, ahead)
    words = bad_words or None
    changes = repetition_penalty, no_repeat_ngram_size, words, None, guide_in(guide)
    processors = Processors._of(*changes, tokenizer=tokenizer)
    drawn = length, sampling, seed, ends, stop or (), helper, processors, beams
    texts = streamed(net, tokenizer, ids, *drawn)
    if not chats:
        print(prompt, end="", flush=True)
    for text in texts:
        print(text, end="", flush=True)
    print()
    if helper is not None and helper.offered:
        share = f"{helper.taken} of {helper.offered} tokens, {helper.acceptance:.0%}"
        print(f"accepted from the draft: {share}", file=sys.stderr)
    return 0


def embed(
    model: Annotated[str, "FOLDER|OWNER/REPO", "a model of sentence-transformers"],
    texts: Annotated[Path, "FILE", "UTF-8, one sentence per line"],
    *,
    out: Annotated[Path, "FILE.npy", "float32, a row per sentence"],
    batch_size: Annotated[int, "N", "sentences at once"] = 32,
    cut: Annotated[bool, "", "cut sentences longer than the model reads"] = False,
) -> int:
    """Write the embeddings of sentences, one per line of a file.

    Each line gives a row (dimensions,) of float32, pooled and scaled by the settings in the folder.

    Examples:
      singanet embed all-MiniLM-L6-v2 sentences.txt --out embeddings.npy
    """
    from singanet.commands.runs.recipe import check_target
    from singanet.commands.runs.trained import embedded, lines_of, write_rows

    check_target(out, [".npy"])
    rows = embedded(model, lines_of(texts), batch_size, cut)
    write_rows(out, rows)
    print(f"{out}: {len(rows):,} embeddings of {rows.shape[1]} dimensions")
    return 0
