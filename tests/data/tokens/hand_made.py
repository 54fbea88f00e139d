"""Chat templates and tokenizers written by hand: each feature by itself, at its most extreme."""

import base64
from itertools import product

from singanet.data.tokens.parts import _KINDS

VALUES = (
    "'a b\n' * 9999", "range(9999) | list", "9 ** 64", "-9 ** 63", "1e308", "messages", "none",
    "''", "[[1]] * 99", "{'a': 'b' * 999}", "namespace(a=1)", "(1, 'a') * 99", "true",
    "'é😀\\u2028' * 999", "nothing", "range", "1_0", "[]", "cycler(1, 2)", "dict(a=messages)",
)  # fmt: skip
FILTERS = (
    "abs", "batch(9999999)", "batch(0)", "batch(-1)", "batch(2, 'a' * 999)", "capitalize",
    "center(-1)", "center(65536)", "center(9 ** 20)", "default('a' * 9999)", "d(1, true)",
    "dictsort", "dictsort(by='value')", "e", "escape", "filesizeformat", "first", "float",
    "float(1e999)", "forceescape", "format(1)", "format(*range(99))", "format(a=1)",
    "groupby('role')", "groupby(0)", "indent(65536)", "indent('a' * 99)", "indent(2, true, true)",
    "int", "int(0, 36)", "int(0, 99)", "int('a')", "items", "join", "join('a' * 999)",
    "join(', ', 'role')", "last", "length", "list", "lower", "map", "map('upper')", "map('map')",
    "map(attribute='a.b.c')", "map(attribute='__class__')", "map('attr', '__class__')", "max",
    "max(attribute='role')", "min", "pprint", "random", "reject", "reject('odd')", "rejectattr",
    "replace('a', 'b' * 99)", "replace('', 'b')", "replace('a', 'b', -5)", "reverse", "round",
    "round(64)", "round(-400)", "round(2, 'floor')", "round(1, 'sideways')", "safe", "select",
    "select('in', messages)", "select('nothing')", "selectattr('role', 'equalto', 'user')",
    "slice(0)", "slice(-1)", "slice(9999999)", "slice(3, 'a' * 999)", "sort", "string", "striptags",
    "sort(reverse=true)", "sort(attribute='a.b')", "sum", "sum(start=[])", "sum(start='a')",
    "sum('a')", "title", "tojson", "tojson(indent=8)", "tojson(indent=-1)", "tojson(indent='\t')",
    "tojson(sort_keys=true)", "tojson(separators=('a' * 9, 'b'))", "tojson(ensure_ascii=true)",
    "trim", "trim('a' * 9999)", "truncate", "truncate(-1)", "truncate(5, true, 'a' * 999)",
    "unique", "unique(true, 'role')", "upper", "urlencode", "urlize", "wordcount", "wordwrap(1)",
    "xmlattr", "attr('__init__')", "attr('__globals__')", "attr('format')", "count", "nothing",
)  # fmt: skip
METHODS = (
    "format(1)", "format(*range(99))", "format_map({})", "zfill(65536)", "zfill(65537)",
    "ljust(99999999)", "rjust(-1)", "center(9, 'ab')", "expandtabs(99999999)", "encode('utf-16')",
    "translate({97: 'a' * 999})", "join(messages)", "join(range(9) | map('string'))", "split('')",
    "split(none, 9)", "split('a', -9 ** 20)", "splitlines(true)", "partition('')", "count('')",
    "replace('a', 'b', -5)", "replace('', 'b' * 99)", "find('a', -9 ** 20)", "index('zz')",
    "startswith(('a',) * 9999)", "keys()", "values()", "items()", "get('a')", "get([])", "copy()",
    "pop()", "clear()", "update({})", "setdefault('a', 1)", "append(1)", "insert(0, 1)", "sort()",
    "bit_length()", "to_bytes(9)", "as_integer_ratio()", "hex()", "fromhex('1')", "real",
    "is_integer()", "isdigit()", "__class__", "__init__.__globals__", "mro()", "next()", "current",
    "strip('a b')", "title()", "swapcase()", "casefold()", "removeprefix('a')", "rsplit('b', 1)",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", "in", "not in", "and", "or",
)  # fmt: skip
TESTS = (
    "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "odd",
    "even", "divisibleby(0)", "divisibleby(3)", "sameas(none)", "eq(1)", "gt('a')", "in(messages)",
    "callable", "escaped", "filter", "test", "lower", "upper", "boolean", "integer", "nothing",
)  # fmt: skip
PARTS = (
    "[::-1]", "[::0]", "[:9 ** 30]", "[-9 ** 30:]", "[0]", "[-1]", "['a']", "[messages]", ".a.b",
)  # fmt: skip
M = "{% for m in messages %}"
STATEMENTS = (
    "", "{# a #}", "{#", "{{", "{%", "{{ }}", "{% %}", "{{ 1 }", "{% if %}", "{% endif %}", "%}",
    "{% raw %}{{ a }}{% endraw %}", "{% raw %}", "{%- if true -%} a {%- endif -%}",
    "\n# for a in b", "{{ " + "(" * 99 + ")" * 99 + " }}",
    "{{ " + "(" * 90 + "1" + ")" * 90 + " }}", "{{ 9" + "9" * 5000 + " }}",
    "{{ " + "[" * 70 + "]" * 70 + " }}", "{{ " + "not " * 999 + "1 }}", "{{ " + "-" * 999 + "1 }}",
    "{% if 1 %}" * 99 + "{% endif %}" * 99, "{{ 1 }}" * 2000, "{{ a" + ".b" * 999 + " }}", "\0",
    "\ud800", "{{ 1" + " + 1" * 2000 + " }}", "{{ 'a'" + " ~ 'a'" * 2000 + " }}",
    "{{ 1" + " | abs" * 999 + " }}", "{{ 1" + " if 1 else 1" * 200 + " }}", "{{ 'a' 'b' }}",
    "{{ '\\x00\\ud800' }}", '{{ "\\N{BULLET}" }}',
    M + "{{ loop.index }}{{ loop.cycle(1, 2) }}{{ loop.changed(m) }}{% endfor %}",
    M + "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }}{% else %}a{% endfor %}",
    M + "{% continue %}{% endfor %}", M + "{% break %}{% endfor %}", "{% continue %}", "{{ loop }}",
    M + "{{ loop(messages) }}{% endfor %}", M + "{% set messages = m %}{% endfor %}{{ messages }}",
    "{% for a, b in messages %}{% endfor %}", "{% for a in 9 %}{% endfor %}",
    "{% for a in none %}a{% endfor %}", "{% for a, b, c in [[1, 2]] %}{% endfor %}",
    "{% for a in [1] if b %}{% endfor %}", M,
    "{% for a in range(9) recursive %}{{ loop([a]) if loop.depth < 99 }}{% endfor %}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for a in range(99) %}" * 3 + "{% endfor %}" * 3,
    "{% for a in range(9) %}" * 9 + "{% endfor %}" * 9,
    "{% for a in range(2) %}" * 19 + "a" + "{% endfor %}" * 19,
    "{% for a in range(2) %}" * 99 + "{% endfor %}" * 99,
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% macro f(a, a) %}{% endmacro %}",
    "{% macro f(*a) %}{% endmacro %}", "{% macro f(a=f) %}{{ a }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, *range(9999), a=1) }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}"
    "{% call f() %}{% call f() %}a{% endcall %}{% endcall %}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(a) f() %}{{ a }}{% endcall %}",
    "{{ caller() }}",
    "{% macro f(k) %}{{ f(k - 1) if k }}{{ f(k - 1) if k }}{% endmacro %}{{ f(30) }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}a{% endmacro %}"
    "{{ f.name }}{{ f.arguments }}{{ f.__call__ }}{{ f }}{{ f | tojson }}",
    "{% set a %}{% endset %}", "{% set a = a %}{{ a }}", "{% set a.b = 1 %}",
    "{% set a, b = 1, 2 %}", "{% set a, b = 1 %}", "{% set a | upper %}b{% endset %}{{ a }}",
    "{% set loop = 1 %}{{ loop }}",
    "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n }}{{ n.a.a.a }}{{ n | tojson }}",
    "{% set n = namespace(a=[]) %}{% set n.a = [n] %}{{ n.a }}{{ [n.a] | join }}",
    "{{ namespace(1) }}", "{% set n = namespace(messages[0]) %}{{ n.role }}",
    "{{ namespace(**{'__class__': 1}).__class__ }}", "{% with a = 1 %}{{ a }}{% endwith %}",
    "{% with %}" * 99 + "{% endwith %}" * 99, "{% do 1 %}",
    "{% filter upper | lower | nothing %}a{% endfilter %}",
    "{% filter indent(99999) %}a{% endfilter %}", "{% block a %}{{ super() }}{% endblock %}",
    "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{{ self.a() }}",
    "{% block a %}{{ self.a() }}{% endblock %}", "{{ self }}",
    "{{ self._TemplateReference__context }}", "{% include 'a' %}",
    "{% include ['a', 'b'] ignore missing %}", "{% extends 'a' %}", "{% import 'a' as b %}",
    "{% from 'a' import b %}", "{% autoescape true %}a{% endautoescape %}",
    "{% trans %}a{% endtrans %}", "{% debug %}",
    "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}", "{% generation %}",
    M + "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}" * 2,
    "{% set a %}{% generation %}a{% endgeneration %}{% endset %}{{ a }}{{ a }}",
    "{{ raise_exception('a' * 9999) }}", "{{ raise_exception(messages) }}",
    "{{ raise_exception() }}", "{{ strftime_now('%Y' * 99) }}", "{{ strftime_now('%99999d') }}",
    "{{ strftime_now('%') }}", "{{ strftime_now(1) }}", "{{ strftime_now('\\x00') }}",
    "{{ strftime_now('%Q\\ud800') }}", "{{ strftime_now.__globals__ }}", "{{ cycler() }}",
    "{{ cycler(*range(9999)).next() }}", "{{ joiner('a' * 9999)() }}", "{{ lipsum() }}",
    "{{ dict(**messages[0]) }}", "{{ dict([[1, 2]]) }}", "{{ dict(1) }}", "{{ range(0, 9, 0) }}",
    "{{ range(9 ** 20) }}", "{{ range(-9 ** 9, 9 ** 9, 9 ** 8) | list }}", "{{ range(1.5) }}",
    "{{ range(99999) | sum }}", "{{ messages[0].__class__.__mro__ }}", "{{ ''.format.__self__ }}",
    "{{ '{0.__class__}'.format(1) }}", "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ ('{0[' + '0' * 9999 + ']}').format([1]) }}", "{{ '{:{}}'.format(1, 9999) }}",
    "{{ '%(a)99999s' % {'a': 1} }}", "{{ '%s' % messages }}", "{{ '%c' % 9999999 }}",
    "{{ '%.9999f' % 1 }}", "{{ '%.999f' % 1 }}", "{{ '%x' % 9 ** 64 }}", "{{ '%s' % () }}",
    "{{ '%' % 1 }}", "{{ 1 / 0 }}", "{{ 1 // 0.0 }}", "{{ 1 % 0 }}", "{{ 0 ** -1 }}",
    "{{ (-8) ** 0.5 }}", "{{ 2.0 ** 4096 }}", "{{ 9.9 ** 64 ** 64 }}", "{{ 1e999 }}",
    "{{ -1e999 | int }}", "{{ 1e308 * 10 | int }}", "{{ 'a' < 1 }}", "{{ messages < messages }}",
    "{{ {[]: 1} }}", "{{ {messages[0]: 1} }}", "{{ {1: 2}[[]] }}", "{{ [1] in 'a' }}", "{{ 1 if }}",
    "{{ 1 is }}", "{{ is }}", "{{ a b }}", "{{ 'a }}", "{{ lambda: 1 }}", "{{ [x for x in y] }}",
    "{{ a = 1 }}", "{{ a := 1 }}", "{{ *messages }}", "{{ f(*1) }}", "{{ range(**1) }}",
    "{{ range(a=1) }}", "{{ é }}", "{{ 变量 }}", "{{ 'a'|é }}", "{% é %}", "{{ __import__('os') }}",
    "{{ open('a') }}", "{{ environment }}", "{{ messages[0]['content'][99999:] }}",
    "{{ messages[99] }}", "{{ messages['a'] }}", "{{ bos_token * 9 ** 9 }}",
    "{{ messages | map(attribute='content') | map('length') | sum }}",
    "{{ messages | tojson | length }}", "{{ messages[0] | items | list }}",
    "{{ messages[0].items() | list }}", "{{ messages | selectattr('a') | list }}",
    "{{ (messages * 9999) | length }}", "{{ (messages * 9999) | tojson | length }}",
    "{{ messages | random }}",
    "{% for a in messages %}{% for b in messages * 999 %}"
    "{{ b.content }}{% endfor %}{% endfor %}",
    "{% set a = messages %}{% for b in range(64) %}{% set a = [a] %}{% endfor %}{{ a }}",
    "a" * 100_000, "{{ '" + "a" * 100_000 + "' }}", "é" * 9999, "{# " + "a" * 99_999 + " #}",
)  # fmt: skip


def templates():
    """The sources."""
    yield from STATEMENTS
    for value, name in product(VALUES, FILTERS):
        yield f"{{{{ ({value}) | {name} }}}}"
        # Of what comes lazily.
        yield f"{{{{ ({value}) | {name} | list | length }}}}"
    for value, name in product(VALUES, METHODS):
        yield f"{{{{ ({value}).{name} }}}}"
    for value, part in product(VALUES, PARTS):
        yield f"{{{{ ({value}){part} }}}}"
    for value, name in product(VALUES, TESTS):
        plain = name.partition("(")[0]
        yield f"{{{{ ({value}) is {name} }}}}{{{{ [{value}] | select('{plain}') | list }}}}"
    for a, b, sign in product(VALUES, VALUES[::3], OPERATORS):
        yield f"{{{{ ({a}) {sign} ({b}) }}}}"


ODD = (
    None, True, False, 0, 1, -1, 64, 2**31, 2**32 - 1, 2**63, 2**64, -(2**63), 0.5, float("nan"),
    float("inf"), "", "a", "\u2581", "é", "\0", "\ud800", "a" * 64, "a" * 4096, "a" * 4097,
    "(a*)*$", [], ["a"], ["a", 1], ["a", -1], [["a", 1]], ["a"] * 4097, [[]] * 99, {}, {"a": 1},
    {"String": ""}, {"String": "a"}, {"Regex": ""}, {"Regex": "["}, {"Regex": "(?=a)" * 99},
    {"Regex": "(a+)+$"}, {"Regex": ".{0,65535}"}, {"Regex": "\\p{L}+|\\s"},
    {"Regex": "(?<!a)(?<=b)\\G"}, {"Regex": "a" * 4096},
)  # fmt: skip
SOUND = {
    "normalizer": {
        "BertNormalizer": {
            **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True),
            "strip_accents": None
        },
        "Prepend": {"prepend": "\u2581"},
        "Replace": {"pattern": {"String": " "}, "content": "\u2581"},
        "Sequence": {"normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        "Strip": {"strip_left": True, "strip_right": True},
        "Precompiled": {"precompiled_charsmap": ""}
    },
    "pre_tokenizer": {
        "ByteLevel": {"add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "CharDelimiterSplit": {"delimiter": "-"}, "Digits": {"individual_digits": True},
        "Metaspace": {"replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "Punctuation": {"behavior": "Isolated"},
        "Sequence": {"pretokenizers": [{"type": "Whitespace"}]},
        "Split": {"pattern": {"Regex": "a"}, "behavior": "Removed", "invert": False}
    },
    "post_processor": {
        "BertProcessing": {"sep": ["a", 1], "cls": ["b", 2]},
        "ByteLevel": {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "RobertaProcessing": {
            "sep": ["a", 1], "cls": ["b", 2],
            **dict.fromkeys(("trim_offsets", "add_prefix_space"), True)
        },
        "Sequence": {"processors": []},
        "TemplateProcessing": {
            "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": k, "type_id": 0}} for k in "AB"],
            "special_tokens": {"a": {"id": "a", "ids": [1], "tokens": ["a"]}}
        }
    },
    "decoder": {
        "BPEDecoder": {"suffix": "</w>"},
        "ByteLevel": {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "CTC": {"pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
        "Metaspace": {"replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "Replace": {"pattern": {"String": "\u2581"}, "content": " "},
        "Sequence": {"decoders": [{"type": "Fuse"}]},
        "Strip": {"content": " ", "start": 1, "stop": 0},
        "WordPiece": {"prefix": "##", "cleanup": True}
    }
}  # fmt: skip
TOKEN = {
    "id": 5,
    "content": "<t>",
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
}
MODELS = {
    "BPE": {
        "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
        **dict.fromkeys(("unk_token", "dropout"), None),
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), None),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    },
    "Unigram": {"vocab": [["a", 0.0], ["b", -1.0]], "unk_id": 0, "byte_fallback": False},
    "WordPiece": {
        "vocab": {"a": 0, "##b": 1}, "unk_token": "a", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100
    },
    "WordLevel": {"vocab": {"a": 0, "b": 1}, "unk_token": "a"}
}  # fmt: skip
VOCABULARIES = (
    {}, [], {"a": 0, "b": 0}, {"a": 2**24 - 1}, {"a": 2**24}, {"a": True}, {"a": 1.0}, {"a": "1"},
    {"a": -1}, {"": 0}, {"a" * 4097: 0}, {"\ud800": 0}, {str(k): k for k in range(9999)},
    [["a", 0.0]] * 9, [["a", float("nan")]] * 2, [["a", 1e308], ["b", -1e308]], [["a"]],
    [["a", "b"]], [["", 0.0]], [["a", 1, 2]], [[1, "a"]], [["a", None]], [["a" * 4096, 0.0]], ["a"],
    "a", 7,
)  # fmt: skip
MERGES = (
    ["a b"], ["a b"] * 9, [["a", "a"]], [["a", "b"], ["ab", "ab"]], ["a"], [""], [" "], ["a b c"],
    [[]], [["a"]], [["a", "b", "c"]], [[1, 2]], ["#version"], "a b", {"a": "b"}, [["a", "x"]],
    [["a", ""]],
)  # fmt: skip


def changed(sound):
    """``sound``, and each of its entries as something odd in turn."""
    yield sound
    yield from (sound | {name: odd} for name, odd in product(sound, ODD) if name != "type")


def parts(place, inner):
    """Those at ``place`` of a ``tokenizer.json``; sequences of them have ``inner``."""
    for kind in _KINDS[place]:
        yield {"type": kind}
        yield from changed({"type": kind, **SOUND[place].get(kind, {})})
    deep = []
    for depth in range(99):
        deep = [{"type": "Sequence", inner: deep}]
        if depth in (1, 9, 31, 32, 98):
            yield deep[0]
    yield from ODD


def charsmaps():
    """Of a trie that says to be of some bytes, and other bytes."""
    rests = b"", b"\0" * 4, b"\xff" * 4, b"\0" * 4096, b"\xff" * 4096, b"a" * 64 + b"\0"
    for size, rest in product((0, 1, 4, 5, 1024, 2**31, 2**32 - 1), rests):
        told = base64.b64encode(size.to_bytes(4, "little") + rest).decode()
        yield {"type": "Precompiled", "precompiled_charsmap": told}


def added_tokens():
    """Lists of them."""
    yield from ([token] for token in changed(TOKEN))
    yield from ([TOKEN] * 2, [TOKEN, TOKEN | {"id": 6}], [TOKEN, TOKEN | {"content": "a"}], *ODD)
    yield [TOKEN | {"id": k, "content": "b" * k} for k in range(1, 999)]


def models():
    """Of each kind, each with other entries."""
    for kind, model in MODELS.items():
        sound = {"type": kind, **model}
        yield from changed(sound)
        yield from (sound | {"vocab": each} for each in VOCABULARIES)
    yield from ({"type": "BPE", **MODELS["BPE"], "merges": each} for each in MERGES)


def sizes():
    """Of padding and truncation."""
    fixed = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    for size in (0, 1, 10**9, 2**63):
        cut = {"direction": "Right", "strategy": "LongestFirst", "stride": size, "max_length": size}
        yield "padding", fixed | {"strategy": {"Fixed": size}, "pad_to_multiple_of": size}
        yield "truncation", cut


def tokenizers(raw):
    """``raw``, a sound ``tokenizer.json``, with one entry of another value in turn."""
    lists = "normalizers", "pretokenizers", "processors", "decoders"
    for place, inner in zip(SOUND, lists, strict=True):
        yield from (raw | {place: part} for part in parts(place, inner))
    yield from (raw | {"normalizer": each} for each in charsmaps())
    yield from (raw | {"added_tokens": each} for each in added_tokens())
    yield from (raw | {"model": each} for each in models())
    yield from (raw | {name: odd} for name, odd in product(("version", "model", "extra"), ODD))
    yield from (raw | {name: each} for name, each in sizes())
    yield from ({name: raw[name]} for name in raw)
    yield from ({k: v for k, v in raw.items() if k != name} for name in raw)
