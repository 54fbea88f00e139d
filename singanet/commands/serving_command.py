"""``singanet serve``."""

from __future__ import annotations

import signal
import socket
from typing import Annotated

from singanet.commands.runs.run_options import NumberRange, refusal
from singanet.errors import BackendError

_FROM_1 = NumberRange("1 or more", lambda value: value >= 1, "pass 1 or more")
_PORT = NumberRange("0 to 65535", lambda value: 0 <= value <= 65535, "8000 is usual")
_SECONDS = NumberRange("above 0", lambda value: value > 0, "pass some seconds")


def serve(
    path: Annotated[
        str,
        "RUN|FOLDER|NET",
        "a run folder, a published model or its name on the hub, or a file of a whole net",
    ],
    *,
    host: Annotated[str, "ADDRESS", "address to listen on; 0.0.0.0 for all"] = "127.0.0.1",
    port: Annotated[int, "N", "port to listen on; 0 for a free one", _PORT] = 8000,
    max_body: Annotated[int, "BYTES", "refuse larger bodies", _FROM_1] = 8 << 20,
    queue: Annotated[int, "N", "refuse requests if this many wait", _FROM_1] = 64,
    together: Annotated[int, "N", "most texts that are written together", _FROM_1] = 16,
    timeout: Annotated[float, "S", "seconds of a request", _SECONDS] = 300.0,
) -> int:
    """Serve a net over HTTP.

    POST /predict takes a list or an object of inputs in JSON, or an .npy file as
    application/octet-stream. Language models answer POST /v1/chat/completions and /v1/completions,
    models of sentences /v1/embeddings, in OpenAI's form. GET / is a page to try the net; /health,
    /metrics and /v1/models tell of the server. SIGTERM ends it after the requests that are begun.

    Examples:
      singanet serve runs/lenet
      singanet serve SmolLM2-135M-Instruct --port 9000
    """
    try:
        import uvicorn

        from singanet.commands.serving.app import Limits, application
    except ImportError as error:
        raise BackendError(
            "singanet serve",
            expected="the packages fastapi, uvicorn and prometheus_client",
            received=str(error),
            advice="install them: pip install 'singanet[serve]'",
        ) from error
    from singanet.commands.serving.loading import load

    try:
        listening = socket.create_server((host, port), backlog=512)
    except OSError as error:
        where = f"--host {host} --port {port}"
        advice = "choose another port, or end the program that has it"
        raise refusal(where, "a free port", error.strerror or str(error), advice) from None
    with listening:
        limits = Limits(max_body, queue, timeout, together)
        served = load(path, limits)
        here = listening.getsockname()[:2]
        print(f"{served.name} on http://{here[0]}:{here[1]}", flush=True)
        app = application(served, limits)
        settings = uvicorn.Config(
            app, ws="none", log_level="warning", access_log=False, lifespan="on"
        )
        server = uvicorn.Server(settings)
        app.state.connections = server.server_state.connections
        # uvicorn finishes what is begun, and then raises the signal again: this is no failure.
        before = [(each, signal.signal(each, _ignore)) for each in (signal.SIGTERM, signal.SIGINT)]
        try:
            server.run([listening])
        finally:
            for each, handler in before:
                signal.signal(each, handler)
    return 0


def _ignore(*_: object) -> None:
    """Let a signal pass."""
