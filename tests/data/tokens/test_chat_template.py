from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import Tokenizer
from singanet.data.tokens import sandbox
from singanet.data.tokens.chat_template import ChatTemplate
from singanet.errors import DataError
from tests.data.tokens.conftest import CHATML, SPECIAL, UNMARKED

ASKED = [{"role": "user", "content": "Who's there?"}]
TOLD = [
    {"role": "system", "content": "Be brief."},
    *ASKED,
    {"role": "assistant", "content": "Nay, answer me."},
    {"role": "user", "content": "Long live the king!"},
    {"role": "assistant", "content": " Bernardo? "},
]
THINKING = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>

</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As Qwen 3 has it: an answer is told otherwise once another follows."""
LLAMA3 = """{{- bos_token }}{%- for message in messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}
    {{- content + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
PHI = """{% for message in messages %}{% if message['role'] in ['system', 'user'] %}
{{'<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n'}}
{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}
{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""
QWEN = """{%- set ns = namespace(multi=true, last=messages|length - 1, all=[]) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and not (message.content.startswith('<tool>')) %}
        {%- set ns.multi = false %}{%- set ns.last = index %}
    {%- endif %}{%- set ns.all = ns.all + [message.role] %}
{%- endfor %}
{%- macro told(content, count) %}{{- content | trim | indent(2) ~ count }}{%- endmacro %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last or (loop.last and thought is defined and thought) %}
        {{- '<|im_start|>%s\n<think>\n' % message.role ~ content ~ '<|im_end|>\n' }}
    {%- else %}{{- '<|im_start|>{}\n'.format(message.role) + content + '<|im_end|>' + '\n' }}
    {%- endif %}
    {%- for name, value in message | dictsort %}{{ name | upper }}{{ value | tojson | length }}
    {%- endfor %}{{- told(content, loop.length) }}
    {%- if not loop.last and loop.nextitem.role != message.role %}{{ '|' }}{% endif %}
{%- endfor %}{{- ns.all | unique | sort | join(', ') }}{{ messages | map(attribute='role') | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | tojson(indent=4) }}
{{ messages | rejectattr('role', 'in', ['user']) | map('items') | map('list') | list }}
{{ {'a': 1, 'b': [1.5, none, true]} | string }}{{ messages[0].items() | list | last | first }}"""
"""As Qwen 3 goes through a conversation, and filters that others use beside."""
LAYOUTS = {
    LLAMA3: ["Nay, answer me.<|eot_id|>", "Bernardo?<|eot_id|>"],
    MISTRAL: [" Nay, answer me.</s>", "  Bernardo? </s>"],
    GEMMA: ["Nay, answer me.<end_of_turn>", "Bernardo?<end_of_turn>"],
}
"""As those of these families are laid out, with the answers of the conversation below."""


def answers_in(source, messages=TOLD):
    whole, spans = ChatTemplate(source, {}, SPECIAL).answers(messages, {})
    return [whole[begin:end] for begin, end in spans]


def test_answers_are_what_the_assistant_says_with_its_end():
    for source in (CHATML, UNMARKED):
        assert answers_in(source) == ["Nay, answer me.<|im_end|>", " Bernardo? <|im_end|>"]
    thought = "<think>\n\n</think>\n\n Bernardo? <|im_end|>"  # as none follows
    assert answers_in(THINKING) == ["Nay, answer me.<|im_end|>", thought]


@pytest.mark.parametrize("source", LAYOUTS, ids=["llama3", "mistral", "gemma"])
def test_answers_in_the_layouts_of_families(source):
    ends = ("<|eot_id|>", "</s>", "<end_of_turn>")
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, ends)
    whole, spans = template.answers(TOLD[1:], {})
    assert [whole[begin:end] for begin, end in spans] == LAYOUTS[source]
    if source != LLAMA3:
        with pytest.raises(DataError, match="received TemplateError: (roles|System role)"):
            template.answers(TOLD, {})


def test_an_end_that_is_no_special_token_belongs_to_the_answer():
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    source += "{% if add_generation_prompt %}assistant: {% endif %}"
    assert answers_in(source) == ["Nay, answer me.\n", " Bernardo? \n"]


def test_answers_that_cannot_be_told_are_refused():
    backwards = "{% for m in messages|reverse %}{{ m.content }}"
    for more in ("{{ m.content }}|{% endfor %}", "{{ m.content | length }}|{% endfor %}"):
        with pytest.raises(DataError, match="whose text shows the answers.*answers_only=False"):
            answers_in(backwards + more)


ZEPHYR = """{% for m in messages %}{% if m['role'] == 'assistant' %}
{{ '<|assistant|>\n' + m['content'] + eos_token }}{% else %}
{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token }}{% endif %}
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{% endfor %}"""
LLAMA2 = """{% for m in messages %}{% if m['role'] == 'user' %}
{{- bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}
{{- ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
QWEN3 = """{%- set ns = namespace(last=-1) %}{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{%- set content = m.content %}
{%- if m.role == 'user' or m.role == 'system' %}
{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' + '\n' }}
{%- else %}{%- set thought = '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last %}
{{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
{{- content.lstrip('\n') }}
{%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
R1 = """{{- bos_token }}{% for m in messages %}{% set content = m['content'] %}
{%- if m['role'] == 'user' %}{{- '<|User|>' + content }}{% endif %}
{%- if m['role'] == 'assistant' %}{% if '</think>' in content %}
{%- set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|Assistant|>' + content + eos_token }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{% endif %}"""


def chatml(m, last):
    return f"<|im_start|>{m['role']}\n", m["content"], "<|im_end|>", "\n"


def zephyr(m, last):
    begin = "\n" if m["role"] == "assistant" else ""
    return f"<|{m['role']}|>", begin + m["content"], "</s>", "\n"


def llama2(m, last):
    if m["role"] == "user":
        return "<s>[INST] ", m["content"].strip(), " [/INST]", ""
    return "", " " + m["content"].strip(), " </s>", ""


def phi3(m, last):
    return f"<|{m['role']}|>\n", m["content"], "<|end|>", "\n"


def qwen3(m, last):
    content, thought = m["content"], ""
    if m["role"] != "assistant":
        return chatml(m, last)
    if "</think>" in content:
        thought = content.split("</think>")[0].split("<think>")[-1].strip("\n")
        content = content.split("</think>")[-1].lstrip("\n")
    if last:
        content = f"<think>\n{thought}\n</think>\n\n" + content.lstrip("\n")
    return f"<|im_start|>{m['role']}\n", content, "<|im_end|>", "\n"


def r1(m, last):
    if m["role"] == "user":
        return "<|User|>", m["content"], "", ""
    return "<|Assistant|>", m["content"].split("</think>")[-1], "</s>", ""


PIECES = {
    "chatml": (UNMARKED, chatml, "", ""), "zephyr": (ZEPHYR, zephyr, "", ""),
    "llama 2": (LLAMA2, llama2, "", ""), "phi 3": (PHI, phi3, "", "</s>"),
    "qwen 3": (QWEN3, qwen3, "", ""), "deepseek r1": (R1, r1, "<s>", ""),
}  # fmt: skip
"""Templates, and what each makes of a message: before, content, end, behind; around all."""
THOUGHTS = ["", " ", "Ay.", "Ay.\n", " so \n\n", "<think>\nhm\n</think>\n\nNo.", "<think>a</think>"]


@pytest.mark.parametrize("name", PIECES)
def test_answers_are_read_off_any_conversation(name):
    source, told, first, behind_all = PIECES[name]
    ends = ("<|im_end|>", "</s>", "<|end|>", "<s>", "<|User|>", "<|Assistant|>", "<|endoftext|>")
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, ends)
    rng = np.random.default_rng(0)
    for _ in range(60):
        messages = [
            {"role": ("user", "assistant")[k % 2], "content": str(rng.choice(THOUGHTS))}
            for k in range(2 * rng.integers(1, 5))
        ]
        pieces = [told(m, k + 1 == len(messages)) for k, m in enumerate(messages)]
        whole, spans = template.answers(messages, {})
        joined = first + "".join("".join(piece) for piece in pieces) + behind_all
        assert "".join(whole.split("\n")) == "".join(joined.split("\n"))
        found = [whole[begin:end] for begin, end in spans]
        wanted = [content + end for _, content, end, _ in pieces[1::2]]
        if name == "phi 3":
            wanted[-1] += "\n\n</s>"  # its template ends the conversation, too
        assert found == wanted


@given(contents=st.lists(st.text("ab é😀\n", min_size=1, max_size=9), min_size=1, max_size=4))
def test_marked_and_found_answers_are_the_same_tokens(tokenizer, unmarked, contents):
    messages = [
        {"role": ("user", "assistant")[k % 2], "content": each} for k, each in enumerate(contents)
    ]
    ids, answers = tokenizer.chat(messages)
    again, found = unmarked.chat(messages)
    assert ids.tolist() == again.tolist()
    # Of an answer that ends a line nothing is taken for the template's.
    np.testing.assert_array_equal(answers, found)
    told = "".join(f"{each}<|im_end|>" for each in contents[1::2])
    assert tokenizer.decode(ids[answers], special=True) == told


def test_threads_render_at_the_same_time(tokenizer):
    def told(k):
        messages = [{"role": "user", "content": "a " * k}, {"role": "assistant", "content": f"{k}"}]
        ids, answers = tokenizer.chat(messages)
        return tokenizer.decode(ids[answers])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(told, range(200))) == [f"{k}" for k in range(200)]


def test_a_prompt_ends_where_the_answer_begins(tokenizer):
    ids = tokenizer.prompt(ASKED)
    told = "<|im_start|>user\nWho's there?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids, special=True) == told == tokenizer._chat_text(ASKED, ask=True)
    whole, answers = tokenizer.chat([*ASKED, {"role": "assistant", "content": "I."}])
    assert whole[: len(ids)].tolist() == ids.tolist()
    assert answers.argmax() == len(ids)


def test_a_template_has_variables(folder):
    backend = Tokenizer.of(folder).backend
    source = "{{ bos_token }}{{ tools | tojson }}{{ documents is none }}{{ name }}"
    tokenizer = Tokenizer(backend, bos_token="<|im_start|>", chat_template=source)
    made = tokenizer._chat_text(ASKED, tools=[{"a": "<é>"}], name="Ay")
    assert made == '<|im_start|>[{"a": "<é>"}]TrueAy'


@pytest.mark.parametrize(("source", "told"), [
    ("{% for %}", "expected a Jinja template"),
    ("{% break %}", "expected a Jinja template; received SyntaxError"),
    ("{% if 1 %}{% continue %}{% endif %}", "expected a Jinja template; received SyntaxError"),
    ("{{ [" + "1, " * 20_000 + "] }}", "received TemplateLimitError: more than 16384 words"),
    ("{{ raise_exception('roles alternate') }}", "received TemplateError: roles alternate"),
    ("{{ messages[0].content + 1 }}", "received TypeError"),
    ("{{ nothing.at.all }}", "received UndefinedError"), ("{{ 1e999 }}", "received NameError"),
    ("{{ 1 / 0 }}", "received ZeroDivisionError"), ("{{ cycler() }}", "received RuntimeError"),
    ("{{ ''.__class__.__mro__ }}", "received SecurityError"),
    ("{{ messages.append(1) }}", "received SecurityError"),
    ("{{ ().__class__.__base__.__subclasses__() }}", "received SecurityError"),
    ("{% include '/etc/passwd' %}", "received TypeError"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "received RecursionError")
])  # fmt: skip
def test_what_a_template_does_wrong_is_told(source, told):
    with pytest.raises(DataError, match=told):
        ChatTemplate(source, {}, ()).text(ASKED, False, {})


GROWN = (
    "{% set n = namespace(v=[1]) %}{% for a in range(40) %}{% set n.v = [n.v, n.v] %}{% endfor %}"
)
N, LOOP, END = "{% set n = namespace(s='a') %}", "{% for a in range(99) %}", "{% endfor %}"


@pytest.mark.parametrize("source", [
    *("{{ " + each + " }}" for each in (
        "'a' * 99999999999", "99999999999 * 'a'", "[0] * 99999999999", "9 ** 9 ** 9 ** 9",
        "'%99999999d' % 1", "'%*d' % (99999999, 1)", "'a'.center(99999999999)",
        "'a' | center(99999999999)", "'a' | indent(99999999999, true)",
        "'{:99999999}'.format(1)", "'%99999999d' | format(1)", "range(99999999999) | list",
        "lipsum(n=9999)", "'a b ' * 9999 | wordwrap(1)", "'a'.translate({97: 'a' * 99999})",
        "(1).to_bytes(99999999)", "'a'.encode() * 99999", "{}.fromkeys(range(9999), 1)",
        "('a' * 9999) | replace('', 'a' * 9999)", "('\n' * 9999) | indent('a' * 9999)",
        "('\u2028' * 9999) | indent(9999)", "('%(a)s' * 999) % {'a': 'a' * 9999}",
        "('{0}' * 999).format('a' * 9999)", "[1] | tojson(indent=99999)",
        "(range(9999) | map('default', 'a') | list) | join('a' * 9999)",
        "2.5 | round(99999999, 'ceil')",
    )),
    *(GROWN + each for each in ("", "{{ n.v }}", "{{ n.v | tojson }}", "{{ n.v ~ 'a' }}",
                                "{{ n.v == [n.v] }}")),
    *(N + LOOP + "{% set n.s = " + each + " %}" + END
      for each in ("n.s + n.s", "n.s ~ n.s", "n.s.replace('a', 'aa')")),
    "{% set n = namespace(s=9) %}" + LOOP + "{% set n.s = n.s * n.s %}" + END,
    "{% for a in range(9999) %}{% for b in range(9999) %}" + END + END,
    "{% macro f(k) %}{% if k %}{{ f(k - 1) + f(k - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(99999) %}{{ 'a' * 9999 }}" + END,
    "{% set x %}{% for a in range(99999) %}{{ 'a' * 9999 }}" + END + "{% endset %}",
    "{% set n = namespace(s=[]) %}{% for a in range(999) %}"
    "{% set n.s = n.s + ['a' * 9999 ~ a] %}" + END,
    "{% for a in range(99999) %}{% if 'a' * 90000 == 'b' %}{% endif %}" + END,
    "{% for a in [0] recursive %}{{ loop(range(99999)) if loop.depth == 1 }}" + END,
    "{% set x %}{% for a in range(9999) %}" + "a" * 999 + END + "{% endset %}",
    "{% set x = 'a' * 90000 %}{% set y %}" + LOOP + "{{ x }}" + END + "{% endset %}",
    "{% autoescape 'a' * 99999999 %}{% endautoescape %}",
])  # fmt: skip
def test_what_a_template_may_ask_for_is_bounded(monkeypatch, source):
    monkeypatch.setattr(sandbox, "MADE_BYTES", 1 << 20)
    monkeypatch.setattr(sandbox, "MOST_BYTES", 100_000)
    words = "Limit|Overflow|Syntax|more than|No filter|'lipsum' is undefined"
    with pytest.raises(DataError, match=words):
        ChatTemplate(source, {}, ()).text(ASKED, False, {})


@pytest.mark.parametrize("messages", [
    *("Ay?", None, [None], {"role": "user"}, [{"content": "Ay?"}], [{"role": 7}]),
    *([{"role": "user", "content": 7}], [{"role": "user", "content": [{"text": "Ay?"}]}]),
])  # fmt: skip
def test_what_is_no_conversation_is_refused(tokenizer, messages):
    with pytest.raises(DataError, match="expected a list of messages"):
        tokenizer.chat(messages)


PEERS = [TOLD, TOLD[1:3], [*ASKED, {"role": "assistant", "content": "é😀 \n<|im_end|> end"}]]


@pytest.mark.parametrize("messages", PEERS, ids=range(len(PEERS)))
def test_equals_transformers(folder, messages):
    transformers = pytest.importorskip("transformers")
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.of(folder)
    peer.chat_template = CHATML
    made = peer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    ids, answers = tokenizer.chat(messages)
    assert ids.tolist() == list(made["input_ids"])
    assert answers.astype(int).tolist() == list(made["assistant_masks"])
    text = peer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    assert tokenizer._chat_text(messages[:-1], ask=True) == text
    json_text = "{%- for m in messages %}\n  {{- m | tojson(indent=1) }}{% endfor %}"
    plain = [each for each in messages if each["role"] != "system"]
    for source in (THINKING, UNMARKED, json_text, PHI, QWEN, *LAYOUTS):
        peer.chat_template = source
        peer.bos_token, peer.eos_token = "<|endoftext|>", "<|im_end|>"
        mine = Tokenizer(tokenizer.backend, "<|endoftext|>", "<|im_end|>", chat_template=source)
        for ask in (False, True):
            told = peer.apply_chat_template(plain, tokenize=False, add_generation_prompt=ask)
            assert mine._chat_text(plain, ask) == told
