"""A lower bound for hosted training: two processes train, and updates are fetched and uploaded over HTTP.

It has files, digests and a minimal server, but no database, queue, keys or checks.

python -m benchmarks.peers.bare_hosting
"""

import hashlib
import os
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from time import perf_counter, sleep

import torch
import uvicorn
from safetensors.torch import load_file, save
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from benchmarks.peers.images import CLIENTS, client_images
from benchmarks.peers.loops import LOOPS, paper_cnn
from benchmarks.peers.turns import Times, Turn, answer, own_output, read_turns
from operator_api.up import WORKER_ALLOCATOR

_PROCESSES = 2
_UPLOADS_AT_ONCE = 2
_BUFFER_BYTES = 512 * 1024
_MODEL = "model"


def main() -> None:
    """Run a round for each request."""
    output = own_output()
    os.environ.update(WORKER_ALLOCATOR)  # for the processes that it starts
    context = get_context("spawn")
    asked: Queue[tuple[int, Turn]] = context.Queue()
    trained: Queue[int] = context.Queue()
    with (
        tempfile.TemporaryDirectory(prefix="fedcs-bench-") as name,
        ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool,
    ):
        folder = Path(name)
        _write(folder / _MODEL, save(paper_cnn().state_dict()))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        context.Process(target=_serve, args=(folder, port), daemon=True).start()
        for _ in range(_PROCESSES):
            context.Process(target=_train, args=(folder, asked, trained), daemon=True).start()
        _await_server(port)
        for turn in read_turns():
            began = perf_counter()
            for client in range(CLIENTS):
                asked.put((client, turn))
            uploads = [pool.submit(_fetch_and_upload, port, trained.get()) for _ in range(CLIENTS)]
            took = perf_counter() - began
            for upload in uploads:
                upload.result()
            _aggregate(folder)
            answer(output, Times(training_s=took, round_s=perf_counter() - began))


def _train(folder: Path, asked: "Queue[tuple[int, Turn]]", trained: "Queue[int]") -> None:
    torch.set_num_threads(1)
    network = paper_cnn()
    while True:
        client, turn = asked.get()
        network.load_state_dict(load_file(folder / _MODEL))
        LOOPS[turn.loop](network, *client_images(client, turn.samples), turn.epochs)
        update = save({name: tensor.contiguous() for name, tensor in network.state_dict().items()})
        hashlib.sha256(update).digest()
        _write(folder / f"trained-{client}", update)
        trained.put(client)


def _fetch_and_upload(port: int, client: int) -> None:
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", f"/trained-{client}")
        update = connection.getresponse().read()
        hashlib.sha256(update).digest()
        connection.request("PUT", f"/uploaded-{client}", body=update)
        assert connection.getresponse().status == HTTPStatus.CREATED


def _aggregate(folder: Path) -> None:
    updates = (load_file(folder / f"uploaded-{client}") for client in range(CLIENTS))
    total = next(updates)
    for update in updates:
        for name, tensor in update.items():
            total[name] += tensor
    _write(
        folder / _MODEL, save({name: (tensor / CLIENTS).to(tensor.dtype) for name, tensor in total.items()})
    )


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class _File(FileResponse):
    chunk_size = 1024 * 1024  # less overhead than the default of 64 KiB


def _serve(folder: Path, port: int) -> None:
    async def fetch(request: Request) -> Response:
        return _File(folder / request.path_params["name"])

    async def take(request: Request) -> Response:
        digest = hashlib.sha256()
        with (folder / request.path_params["name"]).open("wb", buffering=0) as file:
            waiting = bytearray()

            def write() -> None:
                digest.update(waiting)
                file.write(waiting)
                waiting.clear()

            async for chunk in request.stream():
                waiting += chunk
                if len(waiting) >= _BUFFER_BYTES:
                    await run_in_threadpool(write)
            await run_in_threadpool(write)
            await run_in_threadpool(os.fsync, file.fileno())
        return Response(status_code=HTTPStatus.CREATED)

    routes = [Route("/{name}", fetch), Route("/{name}", take, methods=["PUT"])]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="error")


def _await_server(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            sleep(0.1)
        else:
            return
    raise TimeoutError("the server did not start")


if __name__ == "__main__":
    main()
