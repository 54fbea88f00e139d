import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet import pretrained
from singanet.data import Chat, TextFolder, Tokenizer
from singanet.data.tokens.tokenizer_files import byte_level, word_piece
from singanet.errors import DataError, FileAccessError, SingaNetError
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from tests.data.tokens.conftest import SPECIAL, trained

tokenizers = pytest.importorskip("tokenizers")
odd_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def vocabulary_of(backend):
    """The vocabulary and the merges that a backend's own file has."""
    model = json.loads(backend.to_str())["model"]
    pairs = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return model["vocab"], pairs


def test_special_tokens_are_read(tokenizer):
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.vocabulary_size == 400
    assert "400 tokens, with a chat template" in repr(tokenizer)
    assert [part.tolist() for part in tokenizer.around] == [[], []]


@given(text=odd_text)
def test_ids_go_back_to_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_shown_if_wanted(tokenizer):
    ids = tokenizer.encode("<|im_start|>Ay<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "Ay"
    assert tokenizer.decode(ids, special=True) == "<|im_start|>Ay<|im_end|>"
    # A model's table may have more rows than there are tokens.
    assert tokenizer.decode([*ids.tolist(), 5000]) == "Ay"


@given(st.data(), odd_text)
def test_a_stream_gives_the_text_as_soon_as_it_is_whole(tokenizer, data, text):
    ids = tokenizer.encode(text).tolist()
    stream, told, at = tokenizer.stream(), [], 0
    while at < len(ids):
        step = data.draw(st.integers(1, 5))
        told.append(stream.push(*ids[at : at + step]))
        at += step
        assert "".join(told).startswith(tokenizer.decode(ids[:at]).rstrip("\ufffd"))
    assert "".join(told) + stream.close() == text


def of_llama2(text):
    """Words that begin with a sign for their blank, and bytes for what is no token."""
    kinds = tokenizers.normalizers
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = kinds.Sequence([kinds.Prepend("▁"), kinds.Replace(" ", "▁")])
    own = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=own, show_progress=False, max_token_length=8
    )
    backend.train_from_iterator([text[:20_000]], trainer)
    made = json.loads(backend.to_str())
    # Bytes are tokens of the vocabulary, and no special ones.
    made["added_tokens"] = made["added_tokens"][:3]
    backend = tokenizers.Tokenizer.from_str(json.dumps(made))
    steps = tokenizers.decoders
    parts = [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    backend.decoder = steps.Sequence(parts)
    return Tokenizer(backend, "<s>", "</s>", chat_template=LLAMA2)


LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' </s>' }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="session")
def llama2(text):
    return of_llama2(text)


@given(st.text("ab theé😀\n ,", max_size=200), st.integers(0, 3))
def test_a_stream_of_words_with_blanks_and_of_bytes(llama2, text, blanks):
    text = " " * blanks + text
    ids = llama2.encode(text).tolist()
    stream = llama2.stream()
    parts = [stream.push(each) for each in ids]
    assert "".join(parts) + stream.close() == llama2.decode(ids) == text


def test_answers_of_words_with_blanks_and_of_bytes(llama2):
    told = [
        ("user", "Who? é"), ("assistant", "The ghost 😀, é"), ("user", "Ay"), ("assistant", "No"),
    ]  # fmt: skip
    messages = [{"role": role, "content": content} for role, content in told]
    ids, answers = llama2.chat(messages)
    assert [answers[k + 1] for k in np.flatnonzero(ids[:-1] == llama2.eos_id)] == [False]
    assert llama2.decode(ids[answers], special=True) == "The ghost 😀, é </s> No </s>"


def test_a_stream_holds_bytes_back_and_gives_them_at_the_end(tokenizer):
    face = tokenizer.encode("😀").tolist()
    assert len(face) == 4
    stream = tokenizer.stream()
    assert [stream.push(each) for each in face] == ["", "", "", "😀"]
    assert stream.push(*face[:2]) == ""
    assert stream.close() == tokenizer.decode(face[:2]) == "\ufffd"
    assert stream.push(*tokenizer.encode("ay").tolist()) == "ay"


def test_a_long_stream_decodes_its_end_only(tokenizer, text):
    long = text[:20_000] + "é😀" * 50
    ids = tokenizer.encode(long).tolist()
    decoded = []
    stream = tokenizer.stream()
    plain = stream._decode
    stream._decode = lambda ids: decoded.append(len(ids)) or plain(ids)
    assert "".join(map(stream.push, ids)) + stream.close() == long
    assert max(decoded) < 64


@pytest.mark.parametrize(
    "ids", [[-100, 3], np.zeros((2, 3), int), [0.5], "text", np.array([1, -1]), [[1], [2, 3]]]
)
def test_what_is_no_row_of_ids_is_refused(tokenizer, ids):
    with pytest.raises(DataError, match="expected ids of shape"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("given_text", [b"bytes", None, 7, "half \ud83d a pair"])
def test_what_is_no_text_is_refused(tokenizer, given_text):
    with pytest.raises(DataError, match="expected a str without lone surrogates"):
        tokenizer.encode(given_text)


def test_what_the_model_puts_around_a_text_and_what_is_left_out(folder):
    backend = Tokenizer.of(folder).backend.to_str()
    made = tokenizers.Tokenizer.from_str(backend)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "<|im_start|> $A <|im_end|>", None, [("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    tokenizer = Tokenizer(made)
    assert [part.tolist() for part in tokenizer.around] == [[1], [2]]
    assert tokenizer.encode("ay").tolist() == [1, *tokenizer.encode("ay", special=False), 2]
    made = tokenizers.Tokenizer.from_str(backend)
    made.enable_truncation(3)
    made.enable_padding(length=9)
    assert Tokenizer(made).decode(Tokenizer(made).encode("To be, or not")) == "To be, or not"


def test_a_tokenizer_is_copied_and_saved(tokenizer, tmp_path):
    ask = [{"role": "user", "content": "Ay?"}]
    tokenizer._chat_text(ask)
    tokenizer.save(tmp_path)
    for again in (pickle.loads(pickle.dumps(tokenizer)), Tokenizer.of(tmp_path)):
        assert again._fingerprint == tokenizer._fingerprint
        assert again._chat_text(ask).startswith("<|im_start|>user")
        assert (again.bos_id, again.eos_id, again.pad_id) == (1, 2, 0)
    with pytest.raises(FileAccessError):
        tokenizer.save(tmp_path / "none")


def test_transformers_reads_what_is_saved(tmp_path, tokenizer, text):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    line = "<|im_start|>" + text[:3000]
    assert peer(line).input_ids == tokenizer.encode(line).tolist()
    assert peer.decode(peer(line).input_ids) == line
    assert (peer.bos_token_id, peer.eos_token_id, peer.pad_token_id) == (1, 2, 0)
    assert peer.chat_template == tokenizer.chat_template


def test_vocabularies_without_a_tokenizer_json(tmp_path, folder, text):
    backend = Tokenizer.of(folder).backend
    vocabulary, merges = vocabulary_of(backend)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *merges]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    read = Tokenizer.of(tmp_path)
    assert (read.bos_id, read.eos_id, read.pad_id, read.chat_template) == (None,) * 4
    assert read.encode(text[:3000]).tolist() == backend.encode(text[:3000]).ids


def test_word_pieces(tmp_path, text):
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=300,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    peer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    peer._tokenizer.train_from_iterator(text.split("\n"), trainer)
    words = [word for word, _ in sorted(peer.get_vocab().items(), key=lambda item: item[1])]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "[PAD]"}')
    read = Tokenizer.of(tmp_path)
    assert [part.tolist() for part in read.around] == [[2], [3]]
    line = "To be, or NOT to be: café?"
    again = tokenizers.BertWordPieceTokenizer({word: k for k, word in enumerate(words)})
    assert read.encode(line).tolist() == again.encode(line).ids
    with pytest.raises(DataError, match=r"\[UNK\], \[CLS\] and \[SEP\]"):
        word_piece(["a", "b"], True)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_settings_of_word_pieces_are_gone_by(tmp_path, lowercase, accents, chinese):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += ["cafe", "café", "Café", "caf", "##é", "多", "字", "多字", "to", "To", "é", "É", "e"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    told = {"do_lower_case": lowercase, "tokenize_chinese_chars": chinese}
    told |= {} if accents is None else {"strip_accents": accents}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(told))
    peer = tokenizers.BertWordPieceTokenizer(
        {word: k for k, word in enumerate(words)}, lowercase=lowercase, strip_accents=accents,
        handle_chinese_chars=chinese,
    )  # fmt: skip
    line = "Café cafe É 多字 To"
    assert Tokenizer.of(tmp_path).encode(line).tolist() == peer.encode(line).ids


def byte_pairs_in(place, backend, **settings):
    """A folder without tokenizer.json."""
    vocabulary, merges = vocabulary_of(backend)
    (place / "vocab.json").write_text(json.dumps(vocabulary))
    (place / "merges.txt").write_text("\n".join(merges) + "\n", "utf-8")
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.of(place)


def test_settings_of_byte_pairs_are_gone_by(tmp_path, tokenizer, text):
    added = {str(k): {"content": word, "special": True} for k, word in enumerate(SPECIAL)}
    made = byte_pairs_in(
        tmp_path, tokenizer.backend, add_prefix_space=True, added_tokens_decoder=added
    )
    line = text[:2000].lstrip() + SPECIAL[1]
    assert made.encode(line).tolist() == tokenizer.encode(" " + line).tolist()
    kind = byte_pairs_in(tmp_path, tokenizer.backend, tokenizer_class="Qwen2TokenizerFast")
    assert "{1,3}" not in kind.backend.to_str()
    assert kind.encode("12").tolist() == [*tokenizer.encode("1"), *tokenizer.encode("2")]


@pytest.mark.parametrize("odd", [
    {"tokenizer_class": "RobertaTokenizer"}, {"add_prefix_space": "yes"},
    {"add_bos_token": True}, {"never_split": ["ay"]},
    {"added_tokens_decoder": {"900": {"content": "<new>", "special": True}}},
], ids=lambda odd: next(iter(odd)))  # fmt: skip
def test_settings_that_would_make_other_ids_are_refused(tmp_path, tokenizer, odd):
    with pytest.raises(DataError, match=rf"{next(iter(odd))}.*AutoTokenizer"):
        byte_pairs_in(tmp_path, tokenizer.backend, **odd)


def gguf_values(backend, **more):
    vocabulary, merges = vocabulary_of(backend)
    tokens = sorted(vocabulary, key=vocabulary.get)
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": np.array([3 if t in SPECIAL else 1 for t in tokens], np.int32),
        "tokenizer.ggml.bos_token_id": np.uint32(1), "tokenizer.ggml.eos_token_id": np.uint32(2),
        "tokenizer.ggml.padding_token_id": np.uint32(0),
        "tokenizer.chat_template": "{{ messages[0].content }}",
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()}
    }  # fmt: skip


def test_gguf_metadata(tokenizer, text):
    read = Tokenizer.of_gguf(gguf_values(tokenizer.backend))
    line = "<|im_start|>" + text[:2000] + "<|im_end|>"
    assert read.encode(line).tolist() == tokenizer.encode(line).tolist()
    assert (read.bos_id, read.eos_id, read.pad_id) == (1, 2, 0)
    assert read._chat_text([{"role": "user", "content": "Ay?"}]) == "Ay?"
    begun = Tokenizer.of_gguf(gguf_values(tokenizer.backend, add_bos_token=True))
    assert begun.encode("ay").tolist() == [1, *tokenizer.encode("ay")]
    both = Tokenizer.of_gguf(gguf_values(tokenizer.backend, add_bos_token=True, add_eos_token=True))
    assert both.encode("ay").tolist() == [1, *tokenizer.encode("ay"), 2]
    usual = Tokenizer.of_gguf(gguf_values(tokenizer.backend, pre="llama-bpe"))
    assert usual.encode("ay")[0] == 1  # as llama.cpp has it where a file does not say


@pytest.mark.parametrize(("more", "told"), [
    ({"model": "llama"}, "byte-level vocabulary with merges; received 'llama'"),
    ({"pre": "viking"}, "tokenizer.ggml.pre: expected 'default'"),
    ({"tokens": ["a", "a"]}, "expected tokens that differ"),
    ({"tokens": "abc"}, "expected a list of strings tokenizer.ggml.tokens"),
    ({"merges": ["a b c"]}, "expected merges of two tokens"),
    ({"merges": ["zz zzz"]}, "received .*zz"),
    ({"merges": 7}, "expected a list of strings tokenizer.ggml.merges"),
    ({"eos_token_id": 4000}, "expected a eos_token_id below"),
    ({"token_type": "text"}, "vocabulary"), ({"add_sep_token": True}, "add_sep_token"),
])  # fmt: skip
def test_damaged_gguf_metadata(tokenizer, more, told):
    with pytest.raises(DataError, match=told):
        Tokenizer.of_gguf(gguf_values(tokenizer.backend, **more))


@pytest.mark.parametrize("split", ["llama-bpe", "qwen2", "smollm"])
def test_words_are_parted_as_the_models_do(split):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = byte_level({sign: k for k, sign in enumerate(alphabet)}, [], split)
    words = [word for word, _ in made.pre_tokenizer.pre_tokenize_str("it's 2026,  ok\n\n x")]
    number = ["202", "6"] if split == "llama-bpe" else ["2", "0", "2", "6"]
    assert words == ["it", "'s", "Ġ", *number, ",", "Ġ", "Ġok", "ĊĊ", "Ġx"]


@pytest.mark.parametrize(("name", "content", "told"), [
    ("tokenizer.json", b"", "expected tokenizer.json in JSON"),
    ("tokenizer.json", b"{}", "expected a model of the kinds"),
    ("tokenizer.json", b'{"model": {"type": "BPE"}}', "the package tokenizers reads"),
    ("tokenizer.json", b'{"model": ' * 1000, "expected tokenizer.json in JSON"),
    ("tokenizer.json", b"\xff\xfe", "expected tokenizer.json in JSON"),
    ("tokenizer_config.json", b"[]", "expected a JSON object; received list"),
    ("tokenizer_config.json", b"{", "expected tokenizer_config.json in JSON"),
    ("tokenizer_config.json", b'{"a":' * 500, "tokenizer_config.json"),
    ("tokenizer_config.json", b'{"eos_token": 7}', "eos: expected a string; received int"),
    (
        "tokenizer_config.json", b'{"eos_token": "zz"}', "eos_token: expected a token of the voca",
    ),
    ("tokenizer_config.json", b'{"chat_template": 7}', "expected a string; received int"),
    ("special_tokens_map.json", b"7", "expected a JSON object; received int"),
    ("chat_template.jinja", b"a\n\xff", "received other bytes in line 2"),
    ("chat_template.jinja", b"a" * (1 << 18), "expected at most 131072 characters"),
])  # fmt: skip
def test_damaged_files_are_named(tmp_path, folder, name, content, told):
    made = tmp_path / "model"
    shutil.copytree(folder, made)
    (made / name).write_bytes(content)
    with pytest.raises(DataError, match=told) as raised:
        Tokenizer.of(made)
    assert str(made) in str(raised.value)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(DataError, match=r"expected tokenizer\.json, or vocab\.json"):
        Tokenizer.of(tmp_path)
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(DataError, match=r"vocab\.json"):
        Tokenizer.of(tmp_path)
    for vocabulary in ('{"a": -1}', '{"a": 4294967295}', '{"a": "x"}'):
        (tmp_path / "vocab.json").write_text(vocabulary)
        with pytest.raises(DataError, match="expected ids from 0 on, below"):
            Tokenizer.of(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(DataError, match=r"merges\.txt"):
        Tokenizer.of(tmp_path)


def test_nothing_outside_of_the_folder_is_read(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "model" / "special_tokens_map.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileAccessError, match="a link to"):
        Tokenizer.of(tmp_path / "model")


@pytest.mark.parametrize("missing", ["tokenizers", "jinja2"])
def test_without_the_extra_the_line_that_installs_it_is_told(folder, missing):
    code = (
        f"import sys\nsys.modules[{missing!r}] = None\n"
        "from singanet.data import Tokenizer\nfrom singanet.errors import BackendError\n"
        "try:\n"
        f"    tokenizer = Tokenizer.of({str(folder)!r})\n"
        "    tokenizer.encode('ay')\n"
        "    tokenizer.prompt([{'role': 'user', 'content': 'Ay?'}])\n"
        "except BackendError as error:\n    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(singanet.__file__).parents[1])},
        capture_output=True, text=True, check=True
    )  # fmt: skip
    assert f"expected the package {missing}" in run.stdout
    assert "pip install 'singanet[text]'" in run.stdout


def test_a_backend_of_ones_own(text):
    mine = Tokenizer(trained(text, 300, []), eos_token="\u010a")
    assert mine.eos_id is not None
    with pytest.raises(DataError, match="bos_token: expected a token of the vocabulary of 300"):
        Tokenizer(mine.backend, bos_token="<s>")
    with pytest.raises(DataError, match="expected a model with a chat template"):
        mine.chat([{"role": "user", "content": "Ay?"}])


def charsmap_of(model):
    """The table in the ``normalizer_spec`` of a model of sentencepiece's, which is a protobuf."""

    def fields(raw):
        at = 0

        def number():
            nonlocal at
            found, shift = 0, 0
            while True:
                found |= (raw[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if raw[at - 1] < 128:
                    return found

        while at < len(raw):
            field, kind = divmod(number(), 8)
            size = {0: 0, 1: 8, 5: 4}.get(kind)
            size = number() if size is None else size
            yield field, number() if kind == 0 else raw[at : at + size]
            at += size

    (spec,) = (value for field, value in fields(model) if field == 3)
    (table,) = (value for field, value in fields(spec) if field == 2)
    return table


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf"])
def test_tables_of_sentencepiece(tmp_path, rule):
    peer = pytest.importorskip("sentencepiece")
    made = io.BytesIO()
    peer.SentencePieceTrainer.train(
        sentence_iterator=iter(["to be or not to be that is the question"] * 99), model_writer=made,
        vocab_size=60, hard_vocab_limit=False, normalization_rule_name=rule, minloglevel=2
    )  # fmt: skip
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([("a", 0.0)], unk_id=0))
    backend.normalizer = tokenizers.normalizers.Precompiled(charsmap_of(made.getvalue()))
    backend.save(str(tmp_path / "tokenizer.json"))
    mine, theirs = (
        Tokenizer.of(tmp_path).backend.normalizer,
        peer.SentencePieceNormalizer(rule_name=rule),
    )

    def plain(text):
        return [word for word in text.replace("\u2581", " ").split(" ") if word]

    rng = np.random.default_rng(0)
    for code in [0xFDFA, *rng.integers(1, 0xD800, 3000), *rng.integers(0xE000, 0x30000, 3000)]:
        text = f"a{chr(code)}b"
        assert plain(mine.normalize_str(text)) == plain(theirs.normalize(text)), hex(code)


CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
LLAMA = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 1000, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("rows", [CHAT, [CHAT, CHAT], CHAT[0], [{"messages": CHAT}]])
def test_rows_of_a_chat_are_told_what_makes_ids_of_them(tokenizer, rows, tmp_path):
    net = pretrained.build(LLAMA)
    net.compile(SGD(lr=0.1), SoftmaxCrossEntropy())
    pretrained.save(net, tmp_path)
    (tmp_path / "a.txt").write_text("hello")
    for call in (
        lambda: net.predict(rows), lambda: net.fit(rows, verbose=False),
        lambda: net.fit(rows, rows, verbose=False), lambda: net.generate(rows, 2),
        lambda: net.decoder(8).read(rows), lambda: tokenizer.encode(rows),
        lambda: pretrained.tokenizer(rows), lambda: pretrained.load(tmp_path, inputs=rows),
        lambda: Chat(rows, tokenizer, 2, 8),
        lambda: TextFolder(tmp_path / "a.txt", tokenizer, 2, 8, inputs=rows)
    ):  # fmt: skip
        with pytest.raises(SingaNetError, match=r"tokenizer\.prompt\(messages\)"):
            call()
    made = net.generate([tokenizer.prompt(CHAT)], 2)
    assert len(made) == 1
