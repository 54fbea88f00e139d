"""The web application of ``singanet serve``."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.requests import ClientDisconnect

from singanet.commands.serving.batches import BatchQueue
from singanet.commands.serving.connections import cut_slow
from singanet.commands.serving.requests import (
    AskedTexts,
    Fields,
    RequestError,
    TextRequests,
    parsed,
)
from singanet.commands.serving.scheduler import Piece, Scheduler, TextRequest
from singanet.commands.serving.waiting import QueueFullError
from singanet.errors import SingaNetError
from singanet.types import Array

_BINARY = "application/octet-stream"


@dataclass(frozen=True)
class Limits:
    """The limits of a server: bytes of a body, waiting requests, seconds of a request."""

    body: int = 8 << 20
    queue: int = 64
    seconds: float = 300.0
    together: int = 16

    @property
    def arrival(self) -> float:
        """Seconds in which a head or a body has to come."""
        return min(self.seconds, 30.0)


@dataclass
class Served:
    """A net to serve under ``name``: parts that it does not have are None.

    ``classes`` are the names of the classes if ``predict`` computes their probabilities for texts.
    """

    name: str
    texts: TextRequests | None = None
    scheduler: Scheduler | None = None
    predict: BatchQueue | None = None
    embed: BatchQueue | None = None
    ends: frozenset[int] = frozenset()
    classes: tuple[str, ...] = ()

    def close(self) -> None:
        """Finish what is begun."""
        for part in (self.scheduler, self.predict, self.embed):
            if part is not None:
                part.close()


def application(served: Served, limits: Limits) -> FastAPI:
    """Return the application that serves ``served``; ``state.connections`` are uvicorn's."""
    return _Application(served, limits).app


class _Application:
    def __init__(self, served: Served, limits: Limits) -> None:
        self.served, self.limits = served, limits
        self.begun = int(time.time())
        self.count = 0
        registry = CollectorRegistry()
        self.registry = registry
        self.requests = Counter(
            "singanet_requests", "Requests by route and status", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.errors = Counter("singanet_errors", "Responses of 400 and above", registry=registry)
        self.seconds = Histogram(
            "singanet_request_seconds", "Seconds of requests", ["route"], registry=registry
        )
        registry.register(_Now(served))
        # Encoding of texts, beside the loop.
        self.pool = ThreadPoolExecutor(2, "singanet serve")
        self.app = FastAPI(
            title="singanet", docs_url=None, redoc_url=None, openapi_url=None, lifespan=self._life
        )
        routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/", self.page),
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.metrics),
            ("GET", "/v1/models", self.models),
            ("POST", "/predict", self.predict),
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/completions", self.completions),
            ("POST", "/v1/embeddings", self.embeddings),
        ]
        for method, path, handler in routes:
            self.app.add_route(path, self._counted(path, handler), [method])
        self.app.add_exception_handler(404, _not_found)
        self.app.add_exception_handler(405, _not_found)

    @asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        # A request has time for its body and for its answer.
        limits, connections = self.limits, app.state.connections
        watch = asyncio.create_task(cut_slow(connections, limits.arrival, 2 * limits.seconds))
        yield
        watch.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self.served.close)
        self.pool.shutdown()

    def _counted(
        self, route: str, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return ``handler`` with its errors as responses, and its requests counted."""

        async def handled(request: Request) -> Response:
            begin = time.perf_counter()
            try:
                response = await handler(request)
            except RequestError as error:
                response = _json(error.body(), error.status)
            except QueueFullError:
                full = RequestError("the queue is full; try again later", None, 429)
                response = _json(full.body(), 429)
                response.headers["retry-after"] = "1"
            except ClientDisconnect:
                response = Response(status_code=499)
            except SingaNetError as error:
                response = _json(RequestError(str(error)[:1000]).body(), 400)
            except Exception as error:  # noqa: BLE001 - the server goes on
                told = RequestError(f"{type(error).__name__}: {error}"[:300], None, 500)
                response = _json(told.body(), 500)
            if response.status_code == 408:
                response.headers["connection"] = "close"
            self.requests.labels(route, response.status_code).inc()
            if response.status_code >= 400:
                self.errors.inc()
            self.seconds.labels(route).observe(time.perf_counter() - begin)
            return response

        return handled

    async def _body(self, request: Request) -> bytes:
        """Return the body. Errors: `RequestError` if it is too large or comes too slowly."""
        most = self.limits.body
        large = RequestError(f"the body: expected at most {most} bytes", None, 413)
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise large
        found = bytearray()
        try:
            async with asyncio.timeout(self.limits.arrival):
                async for part in request.stream():
                    found += part
                    if len(found) > most:
                        raise large
        except TimeoutError:
            raise RequestError("the body came too slowly", None, 408) from None
        return bytes(found)

    async def _given(self, request: Request) -> Any:
        """Return the JSON of the body. Errors: `RequestError`."""
        body = await self._body(request)
        return await self._beside(lambda: parsed(body))

    async def page(self, request: Request) -> Response:
        """A page to try the net in a browser."""
        text = resources.files(__package__).joinpath("page.html").read_text("utf-8")
        kind = "chat" if self._chats else "text"
        kind = kind if self.served.predict is None else "predict"
        shown = {"name": self.served.name, "kind": kind}
        return HTMLResponse(text.replace("{{settings}}", json.dumps(shown).replace("<", "\\u003c")))

    @property
    def _chats(self) -> bool:
        texts = self.served.texts
        return texts is not None and texts.tokenizer.chat_template is not None

    async def health(self, request: Request) -> Response:
        """Whether the server answers."""
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """The figures for Prometheus."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """The name of the net."""
        entry = {"id": self.served.name, "object": "model", "created": self.begun}
        return _json({"object": "list", "data": [entry | {"owned_by": "singanet"}]})

    # -- predictions ------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        """Predictions of arrays, as JSON or .npy."""
        if self.served.predict is None:
            raise RequestError("/predict: the net that is served writes texts", None, 404)
        if self.served.classes:
            return await self._classified(self.served.predict, await self._given(request))
        binary = request.headers.get("content-type", "").partition(";")[0].strip() == _BINARY
        body = await self._body(request)
        x = _npy(body) if binary else await self._beside(lambda: _inputs(parsed(body)))
        made = await self._wait(self.served.predict.submit(x))
        if binary and not isinstance(made, dict):
            buffer = io.BytesIO()
            np.save(buffer, made, allow_pickle=False)
            return Response(buffer.getvalue(), media_type=_BINARY)
        parts = made if isinstance(made, dict) else {"": made}
        shown = {key: _listed(value) for key, value in parts.items()}
        return _json({"predictions": shown if isinstance(made, dict) else shown[""]})

    async def _classified(self, predict: BatchQueue, given: Any) -> Response:
        """The class of each text, and the probabilities of all, by their names."""
        names = self.served.classes
        rows = await self._wait(predict.submit(await self._ids(given, "the body")))
        shown = [
            {"class": names[int(row.argmax())], "probabilities": dict(zip(names, row, strict=True))}
            for row in (np.asarray(row, np.float64) for row in rows)
        ]
        return _json({"predictions": shown})

    async def _ids(self, given: Any, name: str) -> list[list[int]]:
        """Return the ids of texts. Errors: `RequestError` for a text longer than the net reads."""
        texts = self.served.texts
        assert texts is not None
        ids: list[list[int]] = await self._beside(lambda: texts.several(given, name, 2048))
        longest = max(map(len, ids))
        if texts.limit is not None and longest > texts.limit:
            told = f"{name}: expected at most {texts.limit} tokens, received {longest}"
            raise RequestError(told, name, code="context_length_exceeded")
        return ids

    async def embeddings(self, request: Request) -> Response:
        """Embeddings of texts, in OpenAI's form."""
        embed = self.served.embed
        fields = Fields(await self._given(request))
        if embed is None or self.served.texts is None:
            raise RequestError(
                "/v1/embeddings: the net that is served has no embeddings", None, 404
            )
        texts = self.served.texts
        texts.expect_model(fields)
        given = fields.take("input")
        form = fields.take("encoding_format", "float")
        if form not in ("float", "base64"):
            raise RequestError("encoding_format: expected float or base64", "encoding_format")
        fields.end()
        ids = await self._ids(given, "input")
        rows = await self._wait(embed.submit(ids))
        shown = [
            base64.b64encode(row.astype("<f4").tobytes()).decode()
            if form == "base64"
            else row.tolist()
            for row in rows
        ]
        data = [{"object": "embedding", "index": k, "embedding": e} for k, e in enumerate(shown)]
        count = sum(map(len, ids))
        usage = {"prompt_tokens": count, "total_tokens": count}
        name = self.served.name
        return _json({"object": "list", "data": data, "model": name, "usage": usage})

    async def _beside(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, function)

    async def _wait(self, future: Any) -> Any:
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise RequestError("the limit of time is over", None, 504) from None

    # -- texts ------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        """The answer of a chat model, in OpenAI's form."""
        return await self._texts(request, True)

    async def completions(self, request: Request) -> Response:
        """The continuation of a text, in OpenAI's form."""
        return await self._texts(request, False)

    async def _texts(self, request: Request, chat: bool) -> Response:
        given = await self._given(request)
        texts = self.served.texts
        if texts is None or self.served.scheduler is None:
            raise RequestError("the net that is served writes no texts", None, 404)
        asked = await self._beside(lambda: texts.chat(given) if chat else texts.completion(given))
        self.count += 1
        about: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.begun:x}{self.count:x}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": self.served.name,
        }
        answers = _Answers(self.served, self.limits, asked)
        if asked.stream:
            if chat:
                about["object"] += ".chunk"
            return StreamingResponse(
                answers.streamed(about, chat), media_type="text/event-stream",
                headers={"cache-control": "no-cache"},
            )  # fmt: skip
        found = await answers.whole(request)
        choices = []
        for k, (text, why) in enumerate(found):
            message = {"role": "assistant", "content": text, "refusal": None}
            body = {"message": message} if chat else {"text": text}
            choices.append({"index": k, **body, "finish_reason": why, "logprobs": None})
        return _json(about | {"choices": choices, "usage": answers.usage()})


class _Answers:
    """The texts of one request, which the scheduler writes."""

    def __init__(self, served: Served, limits: Limits, asked: AskedTexts) -> None:
        assert served.scheduler is not None
        self.asked = asked
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + limits.seconds

        def sender(place: int) -> Callable[[Piece], None]:
            def send(piece: Piece) -> None:
                loop.call_soon_threadsafe(self._pieces.put_nowait, (place, piece))

            return send

        how = asked.processors, asked.seed, served.ends, asked.stops, deadline
        self.requests = [
            TextRequest(prompt, asked.length, asked.sampling, sender(k), *how)
            for k, prompt in enumerate(asked.prompts)
        ]
        try:
            for each in self.requests:
                served.scheduler.submit(each)
        except QueueFullError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Write no further."""
        for request in self.requests:
            request.cancelled = True

    def usage(self) -> dict[str, int]:
        """Return the numbers of tokens."""
        read = sum(len(request.prompt) for request in self.requests)
        written = sum(request.written for request in self.requests)
        total = {"total_tokens": read + written}
        return {"prompt_tokens": read, "completion_tokens": written} | total

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yield the pieces as they come. Errors: `RequestError`."""
        open_ones = len(self.requests)
        try:
            while open_ones:
                place, piece = await self._pieces.get()
                if piece.ended == "timeout":
                    raise RequestError("the limit of time is over", None, 504)
                if piece.error is not None:
                    status = 400 if isinstance(piece.error, SingaNetError) else 500
                    raise RequestError(str(piece.error)[:500], None, status)
                open_ones -= bool(piece.ended)
                yield place, piece
        finally:
            self.cancel()

    async def whole(self, request: Request) -> list[tuple[str, str]]:
        """Return the texts and the reasons of their ends."""
        parts: list[list[str]] = [[] for _ in self.requests]
        reasons = [""] * len(parts)

        async def gather() -> None:
            async for place, piece in self.pieces():
                parts[place].append(piece.text)
                reasons[place] = piece.ended or reasons[place]

        work = asyncio.ensure_future(gather())
        try:
            while not (await asyncio.wait([work], timeout=0.5))[0]:
                if await request.is_disconnected():
                    raise ClientDisconnect
            await work
        finally:
            work.cancel()
            self.cancel()
        return [("".join(part), why) for part, why in zip(parts, reasons, strict=True)]

    async def streamed(self, about: dict[str, Any], chat: bool) -> AsyncIterator[str]:
        """Yield the events of a stream."""

        def event(place: int, body: dict[str, Any], why: str | None = None) -> str:
            choice = {"index": place, **body, "finish_reason": why, "logprobs": None}
            return _event(about | {"choices": [choice]})

        if chat:
            for place in range(len(self.requests)):
                yield event(place, {"delta": {"role": "assistant", "content": ""}})
        try:
            async for place, piece in self.pieces():
                if piece.text:
                    yield event(
                        place, {"delta": {"content": piece.text}} if chat else {"text": piece.text}
                    )
                if piece.ended:
                    yield event(place, {"delta": {}} if chat else {"text": ""}, piece.ended)
        except RequestError as error:
            yield _event(error.body())
            return
        if self.asked.usage:
            yield _event(about | {"choices": [], "usage": self.usage()})
        yield "data: [DONE]\n\n"


class _Now:
    """The gauges of a server, read when they are asked for."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the gauges."""
        scheduler = self._served.scheduler
        batches = [b for b in (self._served.predict, self._served.embed) if b is not None]
        waiting = sum(batch.waiting for batch in batches)
        waiting += 0 if scheduler is None else scheduler.waiting
        return [
            GaugeMetricFamily("singanet_queue", "Requests that wait", waiting),
            GaugeMetricFamily(
                "singanet_active", "Texts that are written", scheduler.active if scheduler else 0
            ),
            GaugeMetricFamily(
                "singanet_tokens_total", "Tokens written", scheduler.tokens if scheduler else 0
            ),
        ]


def _json(content: Any, status: int = 200) -> Response:
    # ASCII, since a message may have a lone surrogate of the request.
    return Response(json.dumps(content), status, media_type="application/json")


def _event(content: Any) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path}"[:200] + ": no such route"
    return _json(RequestError(message, None, status).body(), status)


def _inputs(given: Any) -> Any:
    """Return the inputs of a net in JSON as arrays. Errors: `RequestError`."""
    if not isinstance(given, (list, dict)) or not given:
        raise RequestError("the body: expected a list, or an object of inputs by name")
    if isinstance(given, dict):
        return {key: _array(value, key) for key, value in given.items()}
    return _array(given, "the body")


def _array(given: Any, name: str) -> Array:
    """Return the numbers in lists as an array. Errors: `RequestError`."""
    try:
        found = np.array(given)
    except (ValueError, OverflowError, TypeError) as error:
        raise RequestError(
            f"{name}: expected lists of numbers of one length: {error}"[:200]
        ) from None
    if found.dtype.kind not in "biuf" or not found.ndim:
        raise RequestError(f"{name}: expected lists of numbers", name)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise RequestError(f"{name}: expected finite numbers", name)
    return found


def _npy(body: bytes) -> Array:
    """Return the array of an .npy file. Errors: `RequestError`."""
    stream = io.BytesIO(body)
    forms: Any = np.lib.format
    try:
        version = forms.read_magic(stream)
        read = {(1, 0): forms.read_array_header_1_0, (2, 0): forms.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.kind not in "biuf" or size != len(body) - stream.tell():
            raise ValueError("another size or type of numbers")
        flat = np.frombuffer(body, dtype, offset=stream.tell())
        found = flat.reshape(shape, order="F" if fortran else "C")
    except (ValueError, KeyError, EOFError, TypeError, SyntaxError, RecursionError) as error:
        raise RequestError(f"the body: expected an .npy file of numbers: {error}"[:300]) from None
    if not found.ndim:
        raise RequestError("the body: expected an array with a first axis for samples")
    return found


def _listed(array: Array) -> Any:
    """Return nested lists, with null for numbers that JSON does not have."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        objects = array.astype(object)
        objects[~np.isfinite(array)] = None
        return objects.tolist()
    return array.tolist()
