"""Aggregation of encoded updates: the average of what was decoded, added to the model as it was received."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save

from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.uniform import UniformAverage
from services.aggregators.updates import ReceivedModel
from services.tensors.encoded_files import decode_float16, encode_file
from services.tensors.encodings import ENCODINGS, make_encoding

Arrays = dict[str, npt.NDArray[Any]]


def arrays(seed: int, scale: float = 0.1) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "large": rng.normal(0, scale, (300, 400)).astype("f4"),
        "bias": rng.normal(0, scale, 300).astype("f4"),
        "norm.running_mean": rng.normal(0, scale, 300).astype("f4"),
        "norm.num_batches_tracked": np.array(5, np.int64),
    }


@pytest.mark.parametrize("model_encoding", ["float32", "float16"])
@pytest.mark.parametrize("update_encoding", list(ENCODINGS))
def test_the_next_model_is_the_received_one_and_the_mean_difference(
    update_encoding: str, model_encoding: str, tmp_path: Path
) -> None:
    down, up = make_encoding(model_encoding, 0.1), make_encoding(update_encoding, 0.1)
    model = save(arrays(0))
    travelled = b"".join(encode_file(down, model, seed=1))
    received = load(decode_float16(travelled))
    (tmp_path / "model").write_bytes(model)
    (tmp_path / "travelled").write_bytes(travelled)
    updates, trained = [], []
    for number in range(1, 6):
        steps = arrays(number, 0.01)
        own = {
            name: array + steps[name] if array.dtype == np.float32 else array
            for name, array in received.items()
        }
        trained.append(own)
        (tmp_path / str(number)).write_bytes(
            b"".join(encode_file(up, save(own), seed=number, received=travelled))
        )
        updates.append(ReceivedUpdate(str(number), tmp_path / str(number), 100))
    made = aggregate_updates(
        tmp_path / "model",
        updates,
        UniformAverage(),
        received=ReceivedModel(tmp_path / "travelled", down),
        encoding=up,
    )
    assert made.model is not None
    next_model = load(b"".join(made.model.content()))
    for name in ("bias", "norm.running_mean"):
        assert np.allclose(next_model[name], np.mean([update[name] for update in trained], axis=0), atol=1e-7)
    mean = np.mean([update["large"] for update in trained], axis=0)
    step = {"float32": 1e-7, "float16": 2.0**-11, "int8": 0.05 / 127, "int8-topk": 0.02}[update_encoding]
    assert np.abs(next_model["large"] - mean).max() <= step
    assert next_model["norm.num_batches_tracked"] == 5
    norms = [influence.norms.parameters for influence in made.record.influences.values()]
    lengths = [
        np.sqrt(sum(float(((update[name] - received[name]) ** 2).sum()) for name in ("large", "bias")))
        for update in trained
    ]
    if update_encoding == "int8-topk":  # the smaller differences are missing
        assert all(0.3 * length < norm < length for norm, length in zip(norms, lengths, strict=True))
    else:
        assert norms == pytest.approx(lengths, rel=0.01)
