import gc
import json
import tracemalloc
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, Input
from singanet.data import Chat, TextFolder, Tokenizer, TokenLoader
from singanet.data.tokens.text_files import fragments
from singanet.errors import ArgumentError, DataError
from singanet.layers import Add, Dense, Embedding, TimeDistributed
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.parallel import AllReduce
from singanet.testing import communicators
from singanet.training import Callback


@pytest.fixture(scope="module")
def texts(tmp_path_factory, text):
    """Two hundred speeches, some in ``.txt`` files and the others in one ``.jsonl``."""
    folder = tmp_path_factory.mktemp("texts")
    speeches = [speech for speech in text.split("\n\n") if speech][:200]
    for k, speech in enumerate(speeches[:20]):
        (folder / f"{k:02}.txt").write_text(speech)
    lines = [json.dumps({"text": speech, "number": k}) for k, speech in enumerate(speeches[20:])]
    (folder / "rest.jsonl").write_text("\n".join(lines))
    return folder, speeches


@pytest.fixture(scope="module")
def speeches(texts):
    """A few of them, of which an epoch is short."""
    return sorted(texts[0].glob("*.txt"))[:14]


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Conversations of many lengths, of which a short one has a number as its answer."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    rng = np.random.default_rng(0)
    entries = []
    for k in range(60):
        asked, told = "Say it. " * int(rng.integers(1, 9)), f"{k}"
        if k % 2:
            entries.append({"prompt": asked, "answer": told})
        else:
            roles = (("user", asked), ("assistant", told))
            entries.append({"messages": [{"role": r, "content": c} for r, c in roles]})
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


def pairs_in(batches):
    """How often each token and what follows it are there, padding and what is ignored aside."""
    found = Counter()
    for x, y in batches:
        kept = y != -100
        found.update(zip(x["input_ids"][kept].tolist(), y[kept].tolist(), strict=True))
    return found


def as_lists(batches):
    return [({name: part.tolist() for name, part in x.items()}, y.tolist()) for x, y in batches]


OPTIONS = [{}, {"pad_to": (8, 16)}, {"shuffle": False}, {"window": 700}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_epoch_has_every_pair_once(tokenizer, texts, options):
    folder, speeches = texts
    loader = TextFolder(folder, tokenizer, 4, 32, **options)
    wanted = Counter()
    for speech in speeches:
        ids = [*tokenizer.encode(speech).tolist(), tokenizer.eos_id]
        wanted.update(pairwise(ids))
    for epoch in range(2):
        batches = list(loader)
        assert pairs_in(batches) == wanted
        assert loader.state_dict()["epoch"] == epoch + 1
        shapes = {part.shape for x, y in batches for part in (*x.values(), y)}
        assert shapes <= {(4, width) for width in (8, 16, 32)}
        assert all(part.dtype == np.int32 for x, y in batches for part in (*x.values(), y))


@pytest.mark.parametrize("options", [{}, {"pad_to": (8, 16)}], ids=str)
def test_the_last_blocks_are_kept_back(tokenizer, texts, options):
    folder, _ = texts
    whole = TextFolder(folder, tokenizer, 4, 32, window=700, **options)
    rest = TextFolder(folder, tokenizer, 4, 32, window=700, **options)
    next(iter(rest))
    taken = rest.keep_back(0.25)
    assert pairs_in(rest) + pairs_in(taken) == pairs_in(whole)
    size = sum(part.end - part.begin for block in taken.files.blocks for part in block)
    assert 0 <= size - 0.25 * sum(whole.files.sizes.values()) <= 2 * 700
    # Always in their own order, and each side knows its positions from the others'.
    assert as_lists(taken) == as_lists(taken)
    for one, other in ((rest, taken), (taken, whole), (whole, rest)):
        with pytest.raises(ArgumentError):
            one.load_state_dict(other.state_dict() | {"shuffle": int(one.shuffle)})


def test_a_single_block_is_not_parted(tokenizer, texts):
    loader = TextFolder(texts[0], tokenizer, 4, 32)
    with pytest.raises(DataError, match="blocks of text on both sides"):
        loader.keep_back(0.1)
    assert len(loader.files.blocks) == 1


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_line_longer_than_the_blocks_is_on_one_side(tokenizer, tmp_path, place):
    lines = [json.dumps({"text": "the king"})] * 20
    lines.insert(0 if place == "first" else 20, json.dumps({"text": "a ghost " * 60}))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    loader = TextFolder(tmp_path, tokenizer, 2, 32, window=40)
    whole = pairs_in(loader)
    taken = loader.keep_back(0.1)
    assert sorted(pairs_in(loader) + pairs_in(taken)) == sorted(whole)


def test_a_single_line_is_not_parted(tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a ghost " * 60}))
    loader = TextFolder(tmp_path, tokenizer, 2, 32, window=40)
    with pytest.raises(DataError, match="both sides of the split.*received 1 in all"):
        loader.keep_back(0.1)


def test_a_tokenizer_is_one_of_this_library(texts):
    with pytest.raises(ArgumentError, match="TextFolder, tokenizer: .*pretrained.tokenizer"):
        TextFolder(texts[0], "model", 2, 32)


def test_packed_rows_are_full_and_segments_are_texts(tokenizer, texts):
    batches = list(TextFolder(texts[0], tokenizer, 4, 64, seed=1))
    assert [sorted(x) for x, _ in batches] == [["input_ids", "segments"]] * len(batches)
    filled = np.concatenate([x["segments"] > 0 for x, _ in batches[:-1]])
    assert filled.mean() > 0.97
    assert max(x["segments"].max() for x, _ in batches) > 2


def test_the_inputs_are_those_that_the_net_takes(tokenizer, texts):
    both = ("input_ids", "attention_mask")
    x, _ = next(iter(TextFolder(texts[0], tokenizer, 4, 64, inputs=both)))
    assert (x["attention_mask"].sum(axis=1) > 0).all()
    assert set(x) == set(both)
    alone, y = next(iter(TextFolder(texts[0], tokenizer, 4, 64, inputs="input_ids")))
    assert alone.shape == y.shape
    np.testing.assert_array_equal(alone, x["input_ids"])
    padded, _ = next(iter(TextFolder(texts[0], tokenizer, 4, 64, pad_to=[8])))
    assert sorted(padded) == ["attention_mask", "input_ids"]


def test_a_large_text_is_cut_at_line_ends(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    loader = TextFolder(tmp_path, tokenizer, 1, 64, window=8, shuffle=False)
    rows = [x["input_ids"][0][: int((x["segments"] > 0).sum())].tolist() for x, _ in loader]
    whole = "".join(tokenizer.decode(row) for row in rows)
    assert len(loader.files.blocks) == 3
    # The last token of each part is a target alone; the last one is that at the end of a text.
    assert whole.replace("\n", "") == "onetwothreefour"
    targets = [y[0][y[0] != -100].tolist() for _, y in loader]
    assert [row[-1] == tokenizer.eos_id for row in targets] == [False] * (len(rows) - 1) + [True]


def test_what_the_model_puts_around_texts(tokenizer, tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing

    backend = Backend.from_str(tokenizer.backend.to_str())
    ends = [("<|im_start|>", 1), ("<|endoftext|>", 0)]
    backend.post_processor = TemplateProcessing("<|im_start|> $A <|endoftext|>", None, ends)
    (tmp_path / "a.txt").write_text("ay\nno\n")
    made = Tokenizer(backend, eos_token="<|im_end|>")
    for window in (100, 3):
        rows = [
            [*x["input_ids"][0][: (y[0] != -100).sum()].tolist(), y[0][y[0] != -100][-1]]
            for x, y in TextFolder(tmp_path, made, 1, 20, window=window, shuffle=False)
        ]
        ids = [each for row in rows for each in row]
        assert ids == made.encode("ay\nno\n").tolist()


@pytest.mark.parametrize("options", [{}, {"pad_to": (16, 32, 64)}], ids=str)
def test_chats_learn_their_answers(tokenizer, chats, options):
    loader = Chat(chats, tokenizer, 4, 96, **options)
    told = []
    for x, y in loader:
        parts = x.get("segments", x.get("attention_mask"))
        for row, where, targets in zip(x["input_ids"], parts, y, strict=True):
            for segment in range(1, where.max(initial=0) + 1):
                kept = targets[where == segment]
                told.append(tokenizer.decode(kept[kept != -100], special=True))
                begun = tokenizer.decode(row[where == segment][:9], special=True)
                assert begun.startswith("<|im_start|>user\nSay it.")
    assert sorted(told) == sorted(f"{k}<|im_end|>" for k in range(60))


def test_chats_may_be_learnt_as_a_whole(tokenizer, chats):
    some = list(Chat(chats, tokenizer, 4, 96))
    whole = list(Chat(chats, tokenizer, 4, 96, answers_only=False))
    for (x, y), (again, targets) in zip(some, whole, strict=True):
        np.testing.assert_array_equal(x["input_ids"], again["input_ids"])
        np.testing.assert_array_equal(y[y != -100], targets[y != -100])
        assert (targets != -100).sum() > 3 * (y != -100).sum()


def test_prompts_without_a_template_stand_before_their_answers(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "Who's there?", "answer": " Ay"}))
    plain = Tokenizer(tokenizer.backend, eos_token="<|im_end|>")
    (x, y), *rest = Chat(path, plain, 1, 32)
    asked, told = plain.encode("Who's there?").tolist(), [*plain.encode(" Ay").tolist(), 2]
    assert not rest
    size = len(asked) + len(told) - 1
    assert x["input_ids"][0][:size].tolist() == [*asked, *told][:-1]
    assert y[0][:size].tolist() == [-100] * (len(asked) - 1) + told
    assert (y[0][size:] == -100).all()


def test_tools_of_a_line_go_to_the_template(tokenizer, tmp_path):
    source = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    path = tmp_path / "a.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_text(json.dumps({"messages": messages, "tools": [{"name": "clock"}]}))
    made = Tokenizer(tokenizer.backend, chat_template=source)
    x, _ = next(iter(Chat(path, made, 1, 64, answers_only=False, inputs="input_ids")))
    assert made.decode(x[0], special=True).startswith('[{"name": "clock"}]a')


SAID = [{"role": "user", "content": "Say\nking"}, {"role": "assistant", "content": "no"}]


@pytest.mark.parametrize("template", [True, False])
@pytest.mark.parametrize(("entry", "like"), [
    ({"instruction": "Say", "input": "king", "output": "no"}, {"messages": SAID}),
    ({"instruction": "Say\nking", "input": "", "output": "no", "text": "as a whole"},
     {"prompt": "Say\nking", "answer": "no"}),
    ({"conversations": [{"from": "human", "value": "Say\nking"}, {"from": "gpt", "value": "no"}]},
     {"messages": SAID}),
    ({"prompt": SAID[:1], "completion": SAID[1:]}, {"messages": SAID}),
])  # fmt: skip
def test_rows_of_other_libraries_are_conversations(
    tokenizer, unmarked, tmp_path, entry, like, template
):
    made = tokenizer if template else unmarked
    found = []
    for name, line in (("theirs.jsonl", entry), ("ours.jsonl", like)):
        (tmp_path / name).write_text(json.dumps(line))
        (batch,) = Chat(tmp_path / name, made, 1, 64)
        found.append(batch)
    (x, y), (again, targets) = found
    np.testing.assert_array_equal(x["input_ids"], again["input_ids"])
    answer = "no<|im_end|>" + ("\n" if "completion" in entry else "")
    assert made.decode(y[y != -100], special=True) == answer
    if "completion" not in entry:
        np.testing.assert_array_equal(y, targets)


def test_texts_with_completions_are_joined_unchanged(tokenizer, tmp_path):
    """As in trl, also by a model with a template, and with an end token."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "Who's there?", "completion": " Ay"}))
    (x, y), *_ = Chat(path, tokenizer, 1, 32)
    ids = tokenizer.encode("Who's there? Ay<|im_end|>", special=False).tolist()
    size = len(ids) - 1
    assert x["input_ids"][0][:size].tolist() == ids[:-1]
    start = len(tokenizer.encode("Who's there?", special=False)) - 1
    assert y[0][:size].tolist() == [-100] * start + ids[start + 1 :]
    _, whole = next(iter(Chat(path, tokenizer, 1, 32, answers_only=False)))
    assert whole[0][:size].tolist() == ids[1:]


@pytest.mark.parametrize(("entry", "told"), [
    ({"instruction": "ay", "output": ""}, 'expected "instruction" and "output", texts'),
    ({"instruction": "ay", "input": 3, "output": "no"}, "'input 3'"),
    ({"conversations": [{"from": "me", "value": "ay"}]}, '"conversations", a list of'),
    ({"conversations": "ay"}, '"conversations", a list of'),
    ({"prompt": "ay", "completion": SAID}, "as texts, or as lists of messages"),
    ({"prompt": "ay", "completion": ""}, 'an answer "completion" of at least one token'),
    ({"prompt": "ay", "completion": "no", "label": True}, "a preference, with 'label'"),
    ({"prompt": "ay", "chosen": "no", "rejected": "yes"}, "'chosen', 'rejected'; use data.Pairs"),
    ({"text": "ay"}, "with \"prompt\", a string; received entries 'text'"),
    ({"prompt": "ay"}, 'with "answer", a string'),
    ({"prompt": "ay", "answer": 7}, 'with "answer", a string; received int'),
    ({"prompt": "\ud800", "answer": "ay"}, "a lone surrogate at"),
    ({"messages": "ay"}, "expected a list of messages"),
    ({"messages": []}, "a conversation with an answer|messages that the template accepts"),
    ({"messages": [{"role": "user", "content": "ay"}]}, "a conversation with an answer"),
    ({"messages": [{"role": "assistant", "content": 7}]}, "expected a list of messages"),
    ({"messages": [{"role": "assistant", "content": None}]}, "expected a list of messages"),
    ({"prompt": "ay " * 200, "answer": "ay"}, "at most 33 tokens; received"),
])  # fmt: skip
@pytest.mark.parametrize("template", [True, False])
def test_lines_that_are_no_chat_are_named(tokenizer, unmarked, tmp_path, entry, told, template):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + json.dumps(entry))
    with pytest.raises(DataError, match=told) as raised:
        list(Chat(path, tokenizer if template else unmarked, 1, 32))
    assert "a.jsonl', line 2" in str(raised.value)


def test_long_chats_are_left_out_or_cut_if_that_is_wanted(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    entries = [{"prompt": "a", "answer": "ay " * n} for n in (2, 40)]
    path.write_text("\n".join(map(json.dumps, entries)))
    left = [y for _, y in Chat(path, tokenizer, 1, 32, too_long="skip")]
    cut = [y for _, y in Chat(path, tokenizer, 1, 32, too_long="cut", shuffle=False)]
    assert (len(left), len(cut)) == (1, 2)
    assert (cut[0] != -100).sum() > (left[0] != -100).sum()


@pytest.mark.parametrize("entry", [{"text": 7}, {"messages": []}, {"text": "\udc00"}])
def test_lines_that_are_no_text_are_named(tokenizer, tmp_path, entry):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ay"}\n' + json.dumps(entry))
    with pytest.raises(DataError, match=r"a\.jsonl', line 2"):
        list(TextFolder(path, tokenizer, 1, 32))


@pytest.mark.parametrize("options", [*OPTIONS, {"pad_to": (8, 16), "window": 700}], ids=str)
@pytest.mark.few(2)
@given(taken=st.integers(0, 20), ranks=st.sampled_from([1, 2, 4]))
def test_a_position_is_restored(tokenizer, speeches, options, taken, ranks):
    def endless(loader):
        while True:
            yield from loader

    def fresh(rank=0, world_size=1):
        size = 4 // world_size
        return TextFolder(
            speeches, tokenizer, size, 32, rank=rank, world_size=world_size, seed=3, **options
        )

    straight = as_lists(islice(endless(fresh()), 24))
    stopped = fresh()
    list(islice(endless(stopped), taken))
    state = json.loads(json.dumps(stopped.state_dict()))
    parts = []
    for rank in range(ranks):
        resumed = fresh(rank, ranks)
        resumed.load_state_dict(state)
        parts.append(list(islice(endless(resumed), 24 - taken)))
    for k, (x, y) in enumerate(straight[taken:]):
        for rank in range(ranks):
            mine, targets = parts[rank][k]
            assert targets.tolist() == y[rank::ranks]
            assert {name: part.tolist() for name, part in mine.items()} == {
                name: part[rank::ranks] for name, part in x.items()
            }


def test_a_state_of_other_data_is_refused(tokenizer, unmarked, texts, chats):

    def loader(given=tokenizer, paths=texts[0]):
        return TextFolder(paths, given, 2, 32)

    state = loader().state_dict()
    for other in (loader(unmarked), loader(paths=chats)):
        with pytest.raises(ArgumentError, match="build the loader as it was"):
            other.load_state_dict(state)
    with pytest.raises(ArgumentError, match="block"):
        loader().load_state_dict(state | {"block": 99})
    far = loader()
    far.load_state_dict(state | {"row": 100_000})
    with pytest.raises(ArgumentError, match="the texts have changed"):
        next(iter(far))


def test_files_without_a_text_are_refused(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.jsonl").write_text("\n\n")
    loader = TextFolder(tmp_path, tokenizer, 2, 8)
    with pytest.raises(DataError, match="expected a text of two tokens or more; received none"):
        list(loader)


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"pad_to": (64,)}], ids=str)
def test_a_large_file_is_never_in_memory(tokenizer, tmp_path, text, options):
    path = tmp_path / "large.jsonl"
    lines = "".join(json.dumps({"text": part}) + "\n" for part in text.split("\n\n"))
    with path.open("w") as stream:
        for _ in range(400):
            stream.write(lines)
    size, window = path.stat().st_size, 1 << 16
    assert size > 150 * window
    loader = TextFolder(path, tokenizer, 8, 128, window=window, **options)
    # In the last quarter of the file, which is gone to without what stands before it.
    loader.load_state_dict(loader.state_dict() | {"block": len(loader.files.blocks) * 3 // 4})
    gc.collect()
    tracemalloc.start()
    try:
        for _ in islice(loader, 250):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loader.state_dict()["block"] > len(loader.files.blocks) * 3 // 4 + 1
    assert peak < 30 * window < size // 5


def test_a_loader_of_ones_own(tokenizer, chats):
    class Prompts(TokenLoader):
        """The prompts alone."""

        def tokens_of(self, record):
            text = record.entry.get("prompt", "")
            return fragments(self.tokenizer.encode(text), None, self.length)

    batches = list(Prompts(chats, tokenizer, 4, 64))
    assert "Say it." in tokenizer.decode(batches[0][0]["input_ids"][0])


def net_of_two_inputs():
    ids, segments = Input("input_ids", (None,)), Input("segments", (None,))
    words = Embedding("words", 400, 8)(ids)
    places = Embedding("places", 64, 8)(segments)
    scores = TimeDistributed("scores", Dense("fc", 400))(Add("both")(words, places))
    return FeedForwardNet(
        SoftmaxCrossEntropy(ignore_index=-100), inputs=[ids, segments], outputs=scores, seed=0
    )


@pytest.mark.parametrize("at", [3, 12])
def test_an_interrupted_training_goes_on_to_the_bit(tokenizer, texts, at):
    class Keep(Callback):
        _runs_last = True

        def on_batch_end(self, batch, logs):
            if self.session.step == at:
                self.state = {k: np.copy(v) for k, v in self.session.state().items()}

    def fitted(**more):
        net = net_of_two_inputs()
        net.compile(Adam(lr=0.01))
        keep = Keep()
        loader = TextFolder(texts[0], tokenizer, 16, 64, seed=2, window=3000)
        history = net.fit(loader, epochs=2, callbacks=[keep], verbose=False, **more)
        return history, {param.name: param.value.copy() for param in net.params()}, keep

    history, values, keep = fitted()
    again, others, _ = fitted(resume=keep.state)
    assert again == history
    assert history["loss"][1] < history["loss"][0]
    for name, value in values.items():
        np.testing.assert_array_equal(others[name], value)


def test_ranks_train_as_one_process(tokenizer, chats):

    def fitted(comm):
        rank, size = (comm.rank, comm.size) if comm else (0, 1)
        loader = Chat(chats, tokenizer, 4 // size, 96, rank=rank, world_size=size)
        net, rule = net_of_two_inputs(), singanet.optimizer.SGD(lr=0.1)
        net.compile(AllReduce(rule, comm) if comm else rule)
        history = net.fit(loader, epochs=2, verbose=False)
        return history["loss"], net.params()[0].value.copy()

    losses, values = fitted(None)
    with communicators(4) as comms:
        for found, own in comms.run(fitted):
            np.testing.assert_allclose(found, losses, rtol=1e-5)
            np.testing.assert_allclose(own, values, rtol=1e-4, atol=1e-6)
