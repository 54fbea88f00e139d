"""``singanet serve``: its answers beside the library's, and what it refuses."""

import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from singanet import models, pretrained
from singanet.commands.runs.trained import embedded
from singanet.saving.whole_model import save_model
from tests.commands.published import LLAMA, published
from tests.pretrained.configs import CONFIGS

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)
httpx = pytest.importorskip("httpx")
MESSAGES = [{"role": "user", "content": "Speak"}]
TEXTS = "/v1/completions"
CHAT = "/v1/chat/completions"
NPY = {"content-type": "application/octet-stream"}


class Server:
    """A process of ``singanet serve``."""

    def __init__(self, *argv):
        command = [sys.executable, "-m", "singanet", "serve", *map(str, argv), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+", line)[0]
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def post(self, route, **body):
        return self.client.post(route, json=body)

    def text(self, **body):
        return self.post("/v1/completions", **body).json()["choices"][0]["text"]

    def end(self):
        self.process.terminate()
        self.close()

    def close(self):
        assert self.process.wait(30) == 0
        self.process.stdout.close()
        self.client.close()


@pytest.fixture(scope="module")
def writing(llama):
    server = Server(llama, "--max-body", 100_000, "--timeout", 5, "--queue", 40)
    yield server
    server.end()


@pytest.fixture(scope="module")
def predicting(tmp_path_factory):
    net = models.build("lenet", seed=0)
    path = tmp_path_factory.mktemp("net") / "lenet.singanet"
    save_model(net, path)
    server = Server(path)
    yield server, net
    server.end()


@pytest.fixture(scope="module")
def model(llama):
    return pretrained.load(llama), pretrained.tokenizer(llama)


def written(model, prompt, length, **options):
    net, tokenizer = model
    (ids,) = net.generate([prompt], length, stop=tokenizer.eos_id, **options)
    return tokenizer.decode([id for id in ids.tolist() if id != tokenizer.eos_id])


# -- texts ----------------------------------------------------------------------------------------

OPTIONS = [
    {"temperature": 0},
    {"seed": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 50},
    {"seed": 1, "min_p": 0.1, "repetition_penalty": 1.4},
    {"temperature": 0, "no_repeat_ngram_size": 1, "bad_words": ["king"]},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_answers_are_those_of_generate(writing, model, options):
    _, tokenizer = model
    prompt = tokenizer.encode("Speak")
    found = writing.post("/v1/completions", prompt="Speak", max_tokens=12, **options).json()
    assert found["choices"][0]["text"] == written(model, prompt, 12, **options)
    usage = found["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    assert 1 <= usage["completion_tokens"] <= 12
    asked = tokenizer.prompt(MESSAGES)
    found = writing.post("/v1/chat/completions", messages=MESSAGES, max_tokens=12, **options)
    message = found.json()["choices"][0]["message"]
    assert message["content"] == written(model, asked, 12, **options)


def test_openais_client_reads_answers_and_streams(writing, model):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=writing.url + "/v1", api_key="none")
    (served,) = client.models.list().data
    options = {"model": served.id, "max_tokens": 12, "temperature": 0, "stop": ["zz"]}
    whole = client.chat.completions.create(messages=MESSAGES, **options)
    parts = client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **options
    )
    *parts, last = list(parts)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage == whole.usage
    several = client.completions.create(prompt=["Speak", "king"], **options)
    assert [c.text for c in several.choices] == [
        client.completions.create(prompt=each, **options).choices[0].text
        for each in ("Speak", "king")
    ]
    with pytest.raises(openai.NotFoundError, match="model"):
        client.completions.create(prompt="a", **options | {"model": "other"})
    with pytest.raises(openai.BadRequestError, match="n: this server"):
        client.completions.create(prompt="a", n=2, **options)


def test_a_text_ends_before_a_stop(writing):
    whole = writing.text(prompt="Speak", max_tokens=12, temperature=0)
    stop = whole[4:6]
    found = writing.post("/v1/completions", prompt="Speak", max_tokens=12, temperature=0, stop=stop)
    (choice,) = found.json()["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_json_by_a_schema_and_biased_tokens(writing, model):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = writing.post(
        "/v1/chat/completions",
        messages=MESSAGES,
        max_tokens=40,
        temperature=0,
        response_format=form,
    )
    assert json.loads(found.json()["choices"][0]["message"]["content"])["a"] in (1, 2)
    king = int(model[1].encode("k", special=False)[0])
    bias = {str(king): 1000}
    text = writing.text(prompt="Speak", max_tokens=3, temperature=0, logit_bias=bias)
    assert text == model[1].decode([king] * 3)


def test_clients_together_get_what_each_gets_alone(writing):
    prompts = [("Speak " * (1 + k % 5)).strip() for k in range(16)]

    def ask(k):
        return writing.text(prompt=prompts[k], max_tokens=12 + k % 3, seed=k)

    alone = [ask(k) for k in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone


def test_a_client_that_leaves_frees_its_place(writing):
    body = json.dumps({"prompt": "Speak", "max_tokens": 50, "stream": True})
    host, port = writing.url.removeprefix("http://").split(":")
    for _ in range(60):
        with socket.create_connection((host, int(port))) as connection:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            connection.sendall((head + body).encode())
            connection.recv(10)
    assert writing.text(prompt="Speak", max_tokens=2)
    deadline = time.monotonic() + 20
    while "singanet_active 0.0" not in writing.client.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- refusals -------------------------------------------------------------------------------------

HOSTILE = [
    (TEXTS, b""),
    (TEXTS, b"null"),
    (TEXTS, b"[]"),
    (TEXTS, b"{" * 5000),
    (TEXTS, b'{"prompt": ' + b"[" * 40_000),
    (TEXTS, b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}"),
    (TEXTS, b'{"prompt": "\xff"}'),
    (TEXTS, b'{"prompt": "\\ud800"}'),
    (TEXTS, b'{"prompt": "a", "max_tokens": 1e400}'),
    (TEXTS, b'{"prompt": "a", "temperature": NaN}'),
    (TEXTS, b'{"prompt": "a", "temperature": Infinity}'),
    (TEXTS, b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}"),
    (TEXTS, b" " * 200_000),
    *(
        (TEXTS, json.dumps({"prompt": "a", **more}).encode())
        for more in (
            {"prompt": []}, {"prompt": ""}, {"prompt": [[]]}, {"prompt": 5}, {"prompt": {"a": 1}},
            {"prompt": [-1]}, {"prompt": [10**9]}, {"prompt": [10**40]}, {"prompt": ["a"] * 1000},
            {"prompt": "king " * 5000}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": "5"},
            {"max_tokens": True}, {"max_tokens": 64}, {"max_tokens": 10**30}, {"temperature": -1},
            {"temperature": "hot"}, {"temperature": [0]}, {"top_p": 0}, {"top_p": 2},
            {"top_k": 0}, {"seed": -1}, {"seed": "a"}, {"stop": 5}, {"stop": [""]},
            {"stop": ["a"] * 1000}, {"stream": 1}, {"stream": True, "stream_options": 3},
            {"logit_bias": {"a": 1}}, {"logit_bias": {"99999": 1}}, {"logit_bias": [1]},
            {"response_format": 3}, {"response_format": {"type": "json_schema"}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}},
            {"repetition_penalty": 0}, {"no_repeat_ngram_size": 0}, {"bad_words": [-1]},
            {"model": "other"}, {"model": 3}, {"unknown": 1}, {"tools": [1]}, {"logprobs": 3},
            {"echo": True}, {"frequency_penalty": 1}, {"temperature": 10**400}, {"n": 2},
            {"logit_bias": {"1": 10**400}}, {"logit_bias": {"\u0661": 1}}, {"bad_words": [[10**9]]},
            {"bad_words": ["a"] * 1000}, {"bad_words": [""]}, {"prompt": ["a"] * 41},
            {"prompt": "a" * 90_000}, {"prompt": " " * 90_000}, {"stop": ["a"] * 10_000},
            *({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
              for schema in (
                {"enum": ["\ud800"]}, {"enum": [str(k) for k in range(5000)]},
                {"type": "string", "pattern": "^(" + "a?" * 20_000 + ")$"},
                {"allOf": [{"type": "string", "pattern": f".*a.{{{k}}}"} for k in range(20)]},
                {"properties": {"a": {"$ref": "#", "pattern": "a"}}},
                {"anyOf": [{"anyOf": [{"pattern": "a"}], "pattern": "b"}]},
            )),
        )
    ),
    *(
        (CHAT, json.dumps({"messages": messages}).encode())
        for messages in (
            None, [], "Speak", [None], [{}], [{"role": "king", "content": "a"}],
            [{"role": "user"}], [{"role": "user", "content": 3}],
            [{"role": "user", "content": [{"type": "image_url"}]}],
            [{"role": "user", "content": ["a"]}], [{"role": [], "content": "a"}],
            [{"role": "user", "content": [{"type": [], "text": "a"}]}],
            [{"role": "user", "content": "a" * 90_000}], [{"role": "tool", "content": "a"}],
            [{"role": "user", "content": "\ud800"}],
            [{"role": "user", "content": "a " * 4000}], [{"role": "user", "content": "a"}] * 500,
        )
    ),
    ("/v1/embeddings", b'{"input": "a"}'),
    ("/predict", b"[1]"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_hostile_requests_are_refused(writing, place):
    route, body = HOSTILE[place]
    response = writing.client.post(route, content=body)
    assert 400 <= response.status_code < 500
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 1000


def test_a_body_that_trickles_is_cut_and_others_are_served(writing):
    host, port = writing.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"
        )
        assert writing.text(prompt="Speak", max_tokens=2)
        begin = time.monotonic()
        assert b" 408 " in connection.recv(1000)
        assert time.monotonic() - begin < 15


HEADS = {
    "a head": b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx: ",
    "nothing": b"",
    "a refused body": b"POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n\r\n",
}


@pytest.mark.parametrize("sent", HEADS)
def test_a_connection_that_trickles_is_cut_and_others_are_served(writing, sent):
    host, port = writing.url.removeprefix("http://").split(":")
    begin = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=0.3) as connection:
        connection.sendall(HEADS[sent])
        assert writing.text(prompt="Speak", max_tokens=2)
        while True:
            assert time.monotonic() - begin < 30
            try:
                if not connection.recv(1000):
                    break
                connection.sendall(b"a" * (sent != "nothing"))
            except TimeoutError:
                connection.sendall(b"a" * (sent != "nothing"))
            except OSError:
                break


def test_the_queue_has_an_end(llama):
    server = Server(llama, "--queue", 1, "--together", 1)
    with ThreadPoolExecutor(12) as pool:
        asked = {"prompt": "Speak", "max_tokens": 40, "temperature": 0}
        found = list(pool.map(lambda _: server.post(TEXTS, **asked), range(12)))
    statuses = {response.status_code for response in found}
    assert statuses <= {200, 429}
    assert 200 in statuses
    texts = {r.json()["choices"][0]["text"] for r in found if r.status_code == 200}
    assert len(texts) == 1
    server.end()


def test_a_signal_finishes_what_is_begun(llama):
    server = Server(llama)
    alone = server.text(prompt="Speak", max_tokens=45, temperature=0)
    begun, found = threading.Barrier(9, timeout=20), []

    def ask():
        body = {"prompt": "Speak", "max_tokens": 45, "temperature": 0, "stream": True}
        with server.client.stream("POST", TEXTS, json=body) as response:
            # The server has begun it.
            begun.wait()
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert events.pop() == "[DONE]"
        found.append("".join(json.loads(event)["choices"][0]["text"] for event in events))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.wait()
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(30)
    server.close()
    assert found == [alone] * 8


def test_a_port_that_is_taken_is_told_in_a_line(llama, refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = refused("serve", str(llama), "--port", str(taken.getsockname()[1]))
    assert "expected a free port" in message
    assert "a run folder, a published model" in refused("serve", __file__, "--port", "0")


# -- predictions ----------------------------------------------------------------------------------


def test_predictions_are_the_nets_in_either_form(predicting, rng):
    server, net = predicting
    x = rng.normal(size=(3, 1, 28, 28)).astype(np.float32)
    want = net.predict(x)
    found = server.client.post("/predict", json=x.tolist()).json()
    np.testing.assert_allclose(found["predictions"], want, rtol=0, atol=1e-5)
    buffer = io.BytesIO()
    np.save(buffer, x)
    found = server.client.post("/predict", content=buffer.getvalue(), headers=NPY)
    assert found.headers["content-type"] == NPY["content-type"]
    np.testing.assert_allclose(np.load(io.BytesIO(found.content)), want, rtol=0, atol=1e-5)
    (name,) = net.ports().inputs
    found = server.client.post("/predict", json={name: x.tolist()}).json()
    np.testing.assert_allclose(found["predictions"], want, rtol=0, atol=1e-5)


def test_predictions_that_wait_are_made_together(predicting, rng):
    server, net = predicting
    x = rng.normal(size=(24, 1, 28, 28)).astype(np.float32)

    def ask(k):
        wrong = k % 5 == 4
        response = server.client.post(
            "/predict", json=x[k : k + 1 + k % 2].tolist() if not wrong else [[1]]
        )
        assert response.status_code == (400 if wrong else 200)
        return None if wrong else response.json()["predictions"]

    with ThreadPoolExecutor(8) as pool:
        for k, found in enumerate(pool.map(ask, range(23))):
            if found is not None:
                want = net.predict(x[k : k + 1 + k % 2])
                np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)


def npy(array, shape=None):
    buffer = io.BytesIO()
    np.save(buffer, array)
    body = buffer.getvalue()
    return body if shape is None else body.replace(repr(array.shape).encode(), shape)


BODIES = [
    (b"[]", {}), (b"{}", {}), (b"3", {}), (b'"a"', {}), (b"[[1, 2], [3]]", {}), (b'["a"]', {}),
    (b"[NaN]", {}), (b"[1e999]", {}), (b'[{"a": 1}]', {}), (b"[[[[[1]]]]]", {}), (b"[null]", {}),
    (b'{"other": [1]}', {}), (b"[" + b"1" * 5000 + b"]", {}), (b"[true, [1]]", {}),
    (b"", NPY), (b"\x93NUMPY", NPY), (b"\x93NUMPY\x01\x00\xff\xff{", NPY),
    (npy(np.zeros(3))[:-1], NPY), (npy(np.zeros(3)) + b"0", NPY),
    (npy(np.zeros((3, 3)), b"(3, 9" + b"9" * 9 + b")"), NPY), (npy(np.array("abc")), NPY),
    (npy(np.zeros(())), NPY), (npy(np.zeros((2, 2))), NPY),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(BODIES)))
def test_hostile_arrays_are_refused(predicting, place):
    body, headers = BODIES[place]
    response = predicting[0].client.post("/predict", content=body, headers=headers)
    assert 400 <= response.status_code < 500
    assert response.json()["error"]["message"]


def test_embeddings_are_those_of_the_command(sentence_model):
    texts = ["Speak", "my king and queen", "Speak"]
    want = embedded(sentence_model, texts)
    server = Server(sentence_model)
    try:
        found = server.post("/v1/embeddings", input=texts).json()
        vectors = [each["embedding"] for each in found["data"]]
        np.testing.assert_allclose(vectors, want, rtol=0, atol=1e-5)
        for wrong in (None, [], 3, "a " * 9000, [[]], ["a", 3], [[10**9]]):
            assert 400 <= server.post("/v1/embeddings", input=wrong).status_code < 500
        refused = server.post("/v1/embeddings", input="a", dimensions=2)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")
        assert server.post(TEXTS, prompt="a").status_code == 404
        openai = pytest.importorskip("openai")
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        (served,) = client.models.list().data
        (one,) = client.embeddings.create(model=served.id, input=texts[1]).data
        np.testing.assert_allclose(one.embedding, want[1], rtol=0, atol=1e-5)
    finally:
        server.end()


def test_metrics_count(predicting):
    server, _ = predicting
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/nothing").status_code == 404
    assert server.client.put("/health").status_code == 405
    text = server.client.get("/metrics").text
    for name in ("requests_total", "errors_total", "tokens_total", "queue", "request_seconds_sum"):
        assert f"singanet_{name}" in text


def test_without_its_packages_it_says_what_to_install(llama, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'singanet[serve]'" in refused("serve", str(llama))


# -- the page -------------------------------------------------------------------------------------


@pytest.fixture
def page():
    """A page of Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    where = shutil.which("chromium")
    if where is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as browsers:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = browsers.chromium.launch(executable_path=where, args=options)
        yield browser.new_page()
        browser.close()


def test_the_page_writes_and_shows_errors(page, writing):
    page.goto(writing.url)
    page.fill("#input", "Speak")
    page.fill("#temperature", "0")
    page.fill("#tokens", "12")
    page.click("#send")
    page.wait_for_function("document.querySelector('#output').textContent.length > 5")
    page.wait_for_selector("#send:enabled")
    found = writing.post(CHAT, messages=MESSAGES, max_tokens=12, temperature=0).json()
    assert page.text_content("#output") == found["choices"][0]["message"]["content"]
    assert page.text_content("#error") == ""
    page.fill("#tokens", "500")
    page.click("#send")
    page.wait_for_function("document.querySelector('#error').textContent")
    assert "max_tokens: expected at most" in page.text_content("#error")


def test_the_page_predicts(page, predicting, rng):
    server, net = predicting
    x = rng.normal(size=(1, 1, 28, 28)).astype(np.float32)
    page.goto(server.url)
    page.fill("#input", json.dumps(x.tolist()))
    page.click("#send")
    page.wait_for_function("document.querySelector('#output').textContent")
    found = json.loads(page.text_content("#output"))
    np.testing.assert_allclose(found, net.predict(x), rtol=0, atol=1e-5)


@pytest.mark.full
def test_texts_get_the_names_of_their_classes(tmp_path):
    config = LLAMA | {"architectures": ["LlamaForSequenceClassification"], "pad_token_id": 0}
    config |= {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    folder = published(config, tmp_path / "judge")
    net, tokenizer = pretrained.load(folder), pretrained.tokenizer(folder)
    server, texts = Server(folder), ["Who's there?", "Nay, answer me: stand"]
    try:
        found = server.client.post("/predict", json=texts).json()["predictions"]
        for text, one in zip(texts, found, strict=True):
            wanted = net.predict(tokenizer.encode(text)[None])[0]
            assert [*one["probabilities"]] == ["bad", "good"]
            np.testing.assert_allclose([*one["probabilities"].values()], wanted, atol=1e-5)
            assert one["class"] == ["bad", "good"][wanted.argmax()]
        for body in ([], [[1.5]], {"a": 3}, ["ay " * 200], [""]):
            assert 400 <= server.client.post("/predict", json=body).status_code < 500
        assert server.client.post("/v1/completions", json={"prompt": "a"}).status_code == 404
    finally:
        server.end()


def test_a_published_classifier_of_images_is_served(tmp_path, rng):
    net = pretrained.build(CONFIGS["vit"], seed=0)
    pretrained.save(net, tmp_path)
    server = Server(tmp_path)
    try:
        x = rng.normal(size=(2, *net.nodes()[0].output_shapes()[0])).astype(np.float32)
        found = server.client.post("/predict", json=x.tolist()).json()["predictions"]
        np.testing.assert_allclose(found, net.predict(x), rtol=0, atol=1e-5)
    finally:
        server.end()


def test_models_without_an_answer_are_refused_by_name(tmp_path, refused):
    score = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "score"}}
    folder = published(LLAMA | score | {"pad_token_id": 0}, tmp_path / "score")
    assert "each text one class; received one that gives it a score" in refused("serve", folder)
    pretrained.save(pretrained.build(CONFIGS["clip"], seed=0), tmp_path / "clip")
    assert "a causal model" in refused("serve", tmp_path / "clip")
