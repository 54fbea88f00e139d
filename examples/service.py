"""A net behind HTTP: images in, probabilities out.

    python examples/service.py --small
    uvicorn --app-dir examples service:app

The first trains, keeps the predictor in digits.singanet and prints its accuracy on the test data,
0.97 without ``--small``. The second, which needs fastapi and uvicorn, serves it:

    curl --data-binary @images.f32 localhost:8000/predict > probabilities.f32
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

import numpy as np

import singanet

FILE = Path("digits.singanet")


def make(epochs: int = 10) -> None:
    """Train a LeNet on digits, and keep its predictor in one file."""
    data = singanet.data.digits()
    net = singanet.models.build("lenet", data.sample_shape, data.num_classes, seed=0)
    net.compile(singanet.optimizer.Adam(learning_rate=0.002))
    net.fit(data.x_train, data.y_train, epochs=epochs, verbose=False)
    net.predictor().save(FILE)
    print(f"accuracy {net.evaluate(data.x_test, data.y_test).metric:.2f}")


if __name__ == "__main__":
    make(epochs=3 if "--small" in sys.argv else 10)
else:
    from fastapi import FastAPI, HTTPException, Request, Response

    predictor = singanet.load_predictor(FILE)
    (shape,) = predictor.inputs.values()
    predictor(np.zeros((1, *shape), np.float32))  # recorded before the first request comes
    app = FastAPI()

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        """Probabilities of images, both as float32 one after the other."""
        sent = np.frombuffer(await request.body(), np.uint8)
        if not sent.size or sent.size % (4 * prod(shape)):
            raise HTTPException(422, f"expected images of {shape} numbers of float32")
        found = predictor(sent.view(np.float32).reshape(-1, *shape))
        return Response(found.tobytes(), media_type="application/octet-stream")
