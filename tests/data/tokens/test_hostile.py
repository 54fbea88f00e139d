"""Spoilt files of a model's folder, and spoilt texts: errors of ours alone come out."""

import base64
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from time import thread_time

import pytest

from singanet.data import Chat, TextFolder, Tokenizer
from singanet.data.tokens.chat_template import ChatTemplate
from singanet.data.tokens.parts import _KINDS
from singanet.errors import DataError, SingaNetError
from tests.data.tokens import hand_made
from tests.data.tokens.conftest import CHATML, SPECIAL, trained
from tests.mutation.mutations import changed, mutated

MESSAGES = [
    {"role": "user", "content": "Who's there? é"},
    {"role": "assistant", "content": "Nay, answer me."},
]


def outcomes(count, spoil, use):
    """How often ``use`` took what ``spoil`` made, and how often it refused it."""
    found = {"read": 0, "refused": 0}
    for seed in range(count):
        spoil(random.Random(seed))
        try:
            use()
            found["read"] += 1
        except SingaNetError:
            found["refused"] += 1
    assert min(found.values()) > 0, found


COUNTS = [60, pytest.param(300, marks=pytest.mark.full)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_spoilt_folders(tmp_path, text, folder, name, count, capfd):
    made = tmp_path / "model"
    shutil.copytree(folder, made)
    small = trained(text[:4000], 270, SPECIAL)
    small.save(str(made / "tokenizer.json"))
    (made / "chat_template.jinja").write_text(CHATML)
    raw = (made / name).read_bytes()

    def spoil(rng):
        spoilt = changed(raw, rng)
        if name.endswith(".json") and rng.random() < 0.7:
            spoilt = json.dumps(mutated(json.loads(raw), rng)).encode()
        (made / name).write_bytes(spoilt)

    def use():
        tokenizer = Tokenizer.of(made)
        ids, _ = tokenizer.chat(MESSAGES)
        tokenizer.decode(ids)

    outcomes(count, spoil, use)
    capfd.readouterr()  # a panic of Rust tells of itself


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", [Chat, TextFolder])
def test_spoilt_texts(tmp_path, tokenizer, kind, count):
    path = tmp_path / "a.jsonl"
    entries = [{"messages": MESSAGES}, {"prompt": "a", "answer": "b"}]
    entries = entries if kind is Chat else [{"text": "é ay"}, {"text": "no", "more": [1, {}]}]
    raw = "\n".join(map(json.dumps, entries)).encode()

    def spoil(rng):
        spoilt = changed(raw, rng)
        if rng.random() < 0.5:
            spoilt = "\n".join(map(json.dumps, mutated(entries, rng))).encode()
        path.write_bytes(spoilt)

    outcomes(count, spoil, lambda: list(kind(path, tokenizer, 2, 64)))


def put_in(folder, **parts):
    """The tokenizer.json of ``folder`` with other parts."""
    told = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(told | parts))


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


LONGER = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaa"}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
MANY = {"<s>": {"id": "<s>", "ids": [1] * 9999, "tokens": ["<s>"] * 9999}}
CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": None}
BAD_PARTS = {
    "chained": {"normalizer": sequence("normalizers", *[LONGER] * 30)},
    "nested": {"normalizer": sequence("normalizers", LONGER, sequence("normalizers", LONGER))},
    "decoded": {"decoder": sequence("decoders", *[LONGER] * 30)},
    "prepended": {"normalizer": {"type": "Prepend", "prepend": "a" * 99}},
    "everywhere": {"normalizer": LONGER | {"pattern": {"Regex": ""}, "content": "a" * 99}},
    "twice": {"post_processor": TEMPLATE | {"single": TEMPLATE["single"] * 9}},
    "ids": {"post_processor": TEMPLATE | {"special_tokens": MANY}},
    "processors": {"post_processor": sequence("processors", *[TEMPLATE] * 99)},
    **{
        f"charsmap{k}": {"normalizer": CHARSMAP | {"precompiled_charsmap": told}}
        for k, told in enumerate(["AAAA", "/////w==", "AAAAAA==", "BAAAAA==", "", 7, None])
    },
    "long": {
        "normalizer": CHARSMAP
        | {"precompiled_charsmap": base64.b64encode(b"\4\0\0\0" + b"\0" * 4 + b"a" * 99).decode()}
    },
    "unknown": {"pre_tokenizer": {"type": "Unheard"}},
    "added": {"added_tokens": [{"id": 2**32 - 1, "content": "a"}]},
    "model": {"model": {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}},
    "negative": {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
    "word": {"model": {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}},
    "prefix": {"model": {"type": "BPE", "vocab": {}, "continuing_subword_prefix": "a" * 99}},
}


@pytest.mark.parametrize("name", BAD_PARTS)
def test_parts_that_make_far_more_of_a_text_than_it_has_are_refused(tmp_path, folder, name):
    made = shutil.copytree(folder, tmp_path / "model")
    put_in(made, **BAD_PARTS[name])
    with pytest.raises(DataError, match=r"tokenizer\.json.*received"):
        Tokenizer.of(made)


def test_a_name_that_comes_twice_is_refused(tmp_path, folder):
    made = shutil.copytree(folder, tmp_path / "model")
    text = (made / "tokenizer.json").read_text()
    (made / "tokenizer.json").write_text('{"normalizer": {"type": "Unheard"},' + text.lstrip()[1:])
    with pytest.raises(DataError, match="each name once"):
        Tokenizer.of(made)


EXPRESSIONS = (
    "m", "m[0].content", "x.v", "x.w", "'a'", "'é😀'", "9", "2.5", "none", "range(99999)", "a",
    "[{0}, {0}]", "({0},)", "{{'a': {0}, 'b': {0}}}", "{0} ~ {1}", "{0} + {1}", "{0} * 99999",
    "{0} * {1}", "{0} % {1}", "{0} == {1}", "{0} in {1}", "{0}[::-1]", "{0}[{1}]", "{0}.keys()",
    "{0} | list", "{0} | tojson", "{0} | tojson(indent=4)", "{0} | join({1})", "{0} | string",
    "{0} | replace('a', {1})", "{0} | indent({1})", "{0} | batch(2) | list", "{0} | sort",
    "{0} | map('upper') | list", "{0} | map('default', {1}) | list", "{0} | unique | list",
    "{0}.split()", "{0}.split('a')", "{0}.splitlines()", "{0}.join({1})", "{0} | title",
    "{0}.replace('a', {1})", "{0}.center(9999)", "{0} | upper", "{0} | length", "{0} | sum",
    "'%s%s%s' % ({0}, {1}, {0})", "('{{0}}' * 99).format({0})", "dict(a={0}, b={1})", "f({0})",
    "{0} | e", "{0} | safe", "{0} | groupby('a')", "{0} ** {1}", "lipsum()", "x", "loop",
    "{0} | slice(3) | list", "{0} | selectattr('a') | list", "{0} | int", "{0} | truncate(9)",
    "{0} | urlencode", "{0}.encode()", "{0}.format_map({1})", "cycler({0}, {1})", "{0} < {1}",
)  # fmt: skip
STATEMENTS = (
    "{{{{ {0} }}}}", "{{% set x.v = {0} %}}", "{{% set x.w = {0} %}}",
    "{{% set y %}}{1}{{% endset %}}", "{{% for a in {0} %}}{1}{{% endfor %}}",
    "{{% for b in range(99) %}}{1}{1}{{% endfor %}}", "{{% if {0} %}}{1}{{% endif %}}",
    "{{% filter upper %}}{1}{{% endfilter %}}", "ab\n", "{1}{1}", "{{% break %}}",
    "{{% for a in {0} recursive %}}{1}{{{{ loop(a) }}}}{{% endfor %}}",
    "{{% generation %}}{1}{{% endgeneration %}}", "{{% call f({0}) %}}{1}{{% endcall %}}",
)  # fmt: skip


def expression(rng, depth):
    form = rng.choice(EXPRESSIONS[:11] if depth < 1 else EXPRESSIONS)
    return (
        "(" + form.format(expression(rng, depth - 1), expression(rng, depth - 1)) + ")"
        if (depth > 0)
        else form
    )


def statement(rng, depth):
    inner = statement(rng, depth - 1) if depth else "ab"
    return rng.choice(STATEMENTS).format(expression(rng, 3), inner)


def made_up(rng):
    """A template of statements that grow what they find."""
    begin = "{% set m = messages %}{% set x = namespace(v=[1], w='a') %}"
    begin += "{% macro f(a) %}{{ a }}{{ caller() if caller }}{% endmacro %}"
    return begin + "".join(statement(rng, 3) for _ in range(rng.randrange(1, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("call", [
    *("templates(by_chance(made_up, 5000))", "templates(by_chance(spoilt, 5000))"),
    *("tokenizers_by_chance(5000)", "templates(hand_made.templates())", "tokenizers_by_hand()"),
])  # fmt: skip
def test_files_end_soon_and_take_little(call):
    pytest.importorskip("tokenizers")
    code = f"from tests.data.tokens.test_hostile import *\n{call}"
    run = subprocess.run([sys.executable, "-Wignore", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


def measured(files, use):
    """How often ``use`` took one of ``files``; the longest time (s), the memory (MiB)."""
    found, worst = {"read": 0, "refused": 0}, 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for made in files:
        began = thread_time()
        try:
            use(made)
            found["read"] += 1
        except DataError:
            found["refused"] += 1
        took = thread_time() - began
        worst = max(worst, took)
        assert took < 2, (took, made)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < max(64 << 10, 10 * len(made) >> 10), (grown, made)
    assert min(found.values()) > 0, found
    return found, round(worst, 2), grown >> 10


def by_chance(make, count, first=0):
    return (make(random.Random(seed)) for seed in range(first, first + count))


def spoilt(rng):
    return changed(CHATML.encode(), rng).decode("utf-8", "replace")


def render(source):
    ChatTemplate(source, {}, ()).text(MESSAGES, False, {})


def templates(sources):
    render(CHATML)
    return measured(sources, render)


def part(rng, depth=2):
    """A part of any kind, with values of any size."""
    text = rng.choice(["a", "", " ", "é", "\u2581", "a" * 99, "ab" * 9999, "(a+)+$", "[", 7, None])
    some = rng.choice([{"String": text}, {"Regex": text}, text])
    many = rng.choice([1, 2, 9 * depth * depth]) if depth and rng.random() < 0.15 else 0
    parts = [part(rng, depth - 1) for _ in range(many)]
    kinds = [kind for known in _KINDS.values() for kind in known]
    return {
        "type": rng.choice([*kinds, "Unheard"]),
        rng.choice(["normalizers", "pretokenizers", "processors", "decoders"]): parts,
        **dict.fromkeys(("content", "prepend", "replacement", "prefix", "cleanup"), text),
        "pattern": some, "behavior": "Isolated", "invert": rng.random() < 0.5,
        "precompiled_charsmap": base64.b64encode(
            rng.choice([4, 8, 1024, 0]).to_bytes(4, "little")
            + rng.randbytes(rng.choice([0, 4, 4096]))
        ).decode(),
        **{name: ["a", rng.choice([1, -1, 2**32 - 1])] for name in ("sep", "cls")},
        "single": TEMPLATE["single"] * rng.choice([0, 1, 2, 3, 99]), "pair": TEMPLATE["pair"],
        "special_tokens": rng.choice([MANY, TEMPLATE["special_tokens"], {}]),
        **dict.fromkeys(("trim_offsets", "add_prefix_space", "use_regex", "lowercase"), True),
        **dict.fromkeys(("clean_text", "strip_left", "strip_right", "left", "right"), True),
        **{name: rng.choice([0, 1, 2**40, -1]) for name in ("start", "stop")}
    }  # fmt: skip


def tokenizers_by_chance(count, first=0):
    def make(rng):
        told = dict(raw) if rng.random() < 0.5 else mutated(raw, rng)
        for place in rng.sample(places, rng.randrange(3)):
            told[place] = part(rng)
        text = json.dumps(told).encode()
        return changed(text, rng) if rng.random() < 0.2 else text

    raw, places = sound(), ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    return tokenizers(by_chance(make, count, first))


def tokenizers_by_hand(each=1):
    told = islice(hand_made.tokenizers(sound()), 0, None, each)
    return tokenizers(json.dumps(one).encode() for one in told)


def sound():
    backend = trained("To be, or not to be a banana " * 99, 270, SPECIAL)
    return json.loads(backend.to_str())


def tokenizers(files):
    with tempfile.TemporaryDirectory() as folder:

        def use(text):
            (Path(folder) / "tokenizer.json").write_bytes(text)
            tokenizer = Tokenizer.of(folder)
            tokenizer.decode(tokenizer.encode("a banana é\n" * 20)[:100])

        use(json.dumps(sound()).encode())
        return measured(files, use)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_some_that_were_written_by_hand(capfd):
    templates(islice(hand_made.templates(), 0, None, 151))
    tokenizers_by_hand(83)
    capfd.readouterr()  # a panic of Rust tells of itself
