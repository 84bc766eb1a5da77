"""A device with the Python standard library alone: it trains one weight vector on points of its own.

python stdlib_device.py URL CLIENT_ID KEY [ROUNDS]
"""

import base64
import hashlib
import json
import random
import struct
import sys
import time
import urllib.error
import urllib.request

FEATURES = 8
points = [[random.gauss(0, 1) for _ in range(FEATURES)] for _ in range(200)]
labels = [1.0 if sum(point) > 0 else 0.0 for point in points]


def call(method, url, key, body=None, **headers):
    """Send a request; the status, the headers and the body of the answer."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}", **headers}, method=method)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                return error.code, error.headers, error.read()
            time.sleep(float(error.headers.get("Retry-After", 1)))
        except urllib.error.URLError:
            time.sleep(1)


def read_tensors(content):
    """The tensors of a safetensors file: name to (shape, list of float32)."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = entry["shape"], list(struct.unpack(f"<{(end - begin) // 4}f", content[begin:end]))
    return tensors


def write_tensors(tensors):
    """A safetensors file of these tensors."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        offsets = [len(data), len(data) + len(packed)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def train(tensors, assignment):
    """Logistic regression by stochastic gradient descent on the tensor ``w``."""
    shape, weights = tensors["w"]
    rate = assignment["learning_rate"] / assignment["batch_size"]
    for _ in range(assignment["local_epochs"]):
        for point, label in zip(points, labels, strict=True):
            guess = sum(w * x for w, x in zip(weights, point, strict=True))
            error = (1.0 if guess > 0 else 0.0) - label
            weights = [w - rate * error * x for w, x in zip(weights, point, strict=True)]
    return {"w": (shape, weights)}


def take_part(url, client, key, assignment, starts_s):
    """Download the model, train it, upload it when the slot begins; the status of the upload."""
    path = f"{url}/rounds/{assignment['round_id']}"
    _, _, model = call("GET", f"{path}/model", key)
    if hashlib.sha256(model).hexdigest() != assignment["model_digest"]:
        return 0
    update = write_tensors(train(read_tensors(model), assignment))
    digest = base64.b64encode(hashlib.sha256(update).digest()).decode()
    time.sleep(max(starts_s - time.monotonic(), 0))
    status, _, answer = call(
        "PUT",
        f"{path}/updates/{client}",
        key,
        update,
        Content_Type="application/octet-stream",
        Content_Digest=f"sha-256=:{digest}:",
        Fedcs_Data_Samples=str(len(points)),
    )
    print(status, answer.decode())
    return status


def main(url, client, key, rounds="0"):
    """Report, then do what there is to do."""
    report = {"client_id": client, "throughput_bps": 8e6, "compute_samples_per_s": 1e4, "data_samples": 200}
    body = json.dumps(report).encode()
    call("POST", f"{url}/reports", key, body, Content_Type="application/json")
    etag, wait, done = "", "", 0
    while not int(rounds) or done < int(rounds):
        known = {"If_None_Match": etag} if etag else {}
        status, headers, answer = call("GET", f"{url}/assignments{wait}", key, **known)
        received_s = time.monotonic()
        if status == 304:
            continue
        etag, wait = headers["ETag"], "?wait_s=60"
        for assignment in json.loads(answer)["assignments"]:
            if assignment["kind"] == "report":
                call("POST", f"{url}/reports", key, body, Content_Type="application/json")
            else:
                starts_s = received_s + (assignment["starts_in_s"] or 0)
                done += take_part(url, client, key, assignment, starts_s) in (200, 201)


if __name__ == "__main__":
    main(*sys.argv[1:])
