"""Published models on a GPU's arrays: outputs, gradients, steps and texts are those of the CPU."""

import numpy as np
import pytest

from singanet import device, pretrained
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops
from singanet.optimizer import Adafactor, AdamW
from tests.pretrained.peers import MODELS, batch, make, write


def told(folder, there, saved):
    """All that a net of ``folder`` gives on the device ``there``, on the host."""
    host = there.ops.host
    net = pretrained.load(folder)
    net.to_device(there)
    x = batch(net)
    y = net.forward(True, x)
    ys = y if isinstance(y, dict) else {"": y}
    found = [host(part) for part in ys.values()]
    # Targets come from the host, as everything that a user has read.
    rng = np.random.default_rng(1)
    dys = {of: there.put(rng.standard_normal(a.shape, np.float32)) for of, a in ys.items()}
    for _, _, grads in net.backward(dys if isinstance(y, dict) else dys[""]):
        found += [host(getattr(grad, "rows", grad)) for grad in grads]
    predicted = net.predict(x)
    found += map(host, predicted.values() if isinstance(y, dict) else [predicted])
    if isinstance(net.loss, SoftmaxCrossEntropy) and len(ys) == 1 and ys[""].ndim == 3:
        words = np.random.default_rng(2).integers(0, 5, ys[""].shape[:2])
        rule = Adafactor(lr=0.01)
        found.append(np.array([net.step(x, words, rule)[0] for _ in range(3)]))
    pretrained.save(net, saved)
    return found


@pytest.mark.few(2, full=0)
@pytest.mark.parametrize("name", MODELS)
def test_a_family_is_there_what_it_is_on_the_cpu(name, gpu, tmp_path):
    write(make(name), tmp_path)
    wanted = told(tmp_path, device.cpu(), tmp_path / "cpu")
    found = told(tmp_path, gpu, tmp_path / "there")
    for one, other in zip(found, wanted, strict=True):
        # The gradient of a bias of keys is nothing but rounding.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * max(1e-2, abs(other).max()))


@pytest.mark.parametrize("method", ["full", "pairs"])
def test_a_decoder_learns_and_writes_there_as_on_the_cpu(method, gpu, tmp_path):
    write(make("llama"), tmp_path)
    line = np.array([[1, 2, 3, 4, 5, 6, 7, 8]])

    def written(there):
        net = pretrained.load(tmp_path)
        if method == "pairs":
            net.adapt(lora=2)
            rng = np.random.default_rng(0)
            for param in net.params():
                if "lora" in param.name:
                    param.value[...] = rng.standard_normal(param.shape, np.float32) * 0.1
        net.to_device(there)
        rule = AdamW(lr=0.05)
        losses = [net.step(line[:, :-1], line[:, 1:], rule)[0] for _ in range(6)]
        return losses, np.asarray(net.generate(line[:, :3], length=5, temperature=0.0)).tolist()

    (found, text), (wanted, other) = written(gpu), written(device.cpu())
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert text == other


@pytest.mark.parametrize("dtype", ["bfloat16", "remainder", "int8", "int4"])
def test_a_decoder_in_fewer_bits_learns_and_writes_there_as_on_the_cpu(dtype, gpu, tmp_path):
    write(make("llama"), tmp_path)
    line = np.array([[1, 2, 3, 4, 5, 6, 7, 8]])

    def written(there, saved):
        words = dtype in ("bfloat16", "remainder")
        rounding = dtype if dtype == "remainder" else None
        net = pretrained.load(tmp_path, "bfloat16" if words else dtype, rounding=rounding, seed=0)
        net.to_device(there)
        if not words:
            net.adapt(lora=2)
        rule = AdamW(lr=0.05) if not words else Adafactor(lr=0.01)
        losses = [net.step(line[:, :-1], line[:, 1:], rule)[0] for _ in range(6)]
        decoder = net.decoder()
        scores = [there.ops.host(decoder(part)) for part in np.split(line, [1, 4], axis=1)]
        whole = there.ops.host(net.predict(line))
        near = 2.0**-5 * np.abs(whole).max()
        np.testing.assert_allclose(np.concatenate(scores, 1), whole, rtol=0, atol=near)
        pretrained.save(net, saved, merged=not words)
        text = np.asarray(net.generate(line[:, :3], length=5, temperature=0.0)).tolist()
        return losses, text, (saved / "model.safetensors").stat().st_size

    # Kernels of oneDNN round rows that they multiply by what is held.
    plain = device.Device("cpu", numpy_ops)
    (found, text, size), (wanted, other, same) = (
        written(there, tmp_path / there.name) for there in (gpu, plain)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    assert found[-1] < found[0]
    assert text == other
    assert size == same
