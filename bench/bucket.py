"""A store in a bucket beside the same store in a directory: batches of Atari stacks, warm and cold.

    python -m bench.bucket --json FILE

*Warm*: all of the store is in the cache on the local disk. *Cold*: the cache is empty when the first batch is asked for; then it
is filled by what batches need. Both are compared with batches from the directory, which is in the page cache.

The server is nginx, on this machine, which answers as a bucket would: the list of all objects is a file that is made here, and
objects are files. Where it is not installed, it is moto's, which takes some 5 ms of processor time for a request. Either shares
the processor with what is measured, and none has the 10 to 30 ms in which S3 answers. So what does not depend on the server is
counted, too: *requests* a batch, and bytes *received* for each byte *wanted*. Wanted are the rows of a batch, as many bytes as a
row has in its shard on average.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, frames
from bench.measure import Report, arguments, in_turn, ratio

BATCH, STACK, EPISODE = 256, 4, 500
BLOCKS = (4096, 16 * 1024, 64 * 1024, 256 * 1024)
STARTED = 10.0  # seconds that a server may take

NGINX = """
worker_processes 1; daemon off; error_log stderr crit; pid {place}/pid; user root;
events {{ worker_connections 512; }}
http {{
  access_log off; keepalive_requests 1000000; client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
  fastcgi_temp_path {place}/fastcgi; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
  server {{
    listen 127.0.0.1:{port}; root {root};
    location = /bucket {{ default_type application/xml; alias {place}/list.xml; }}
    location /bucket/ {{ alias {root}/; }}
  }}
}}
"""


def stored(path: Path, steps: int) -> Path:
    """Make a store of real frames, cut into episodes."""
    pixels = frames(min(steps, 50_000))
    with db.ReplayBuffer(path, steps, columns=COLUMNS, frame_stack=STACK) as buffer:
        while len(buffer) < steps:
            for first in range(0, len(pixels), EPISODE):
                obs = pixels[first : first + EPISODE]
                over = np.arange(len(obs) - 1) == len(obs) - 2
                buffer.extend(obs=obs, action=np.arange(len(over)) % 6, reward=np.ones(len(over)), terminated=over)
        buffer.flush(recompress=True)
    return path


@contextlib.contextmanager
def served(store: Path) -> Iterator[tuple[str, str]]:
    """Yield the endpoint of a server that has a store in its bucket, and the server's name."""
    with (nginx if shutil.which("nginx") else moto)(store) as endpoint:
        yield endpoint, "nginx" if shutil.which("nginx") else "moto"


@contextlib.contextmanager
def nginx(store: Path) -> Iterator[str]:
    """Serve the files of a store, and a list of them, from the bucket ``bucket``."""
    place, port = Path(tempfile.mkdtemp(prefix="diskbuffer-nginx-")), _free_port()
    objects = []
    for file in sorted(path for path in store.rglob("*") if path.is_file()):
        status = file.stat()
        tag = f"&quot;{int(status.st_mtime):x}-{status.st_size:x}&quot;"
        objects.append(
            f"<Contents><Key>{escape(str(file.relative_to(store)))}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{tag}</ETag><Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    listed = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{''.join(objects)}</ListBucketResult>"
    (place / "list.xml").write_text(listed)
    (place / "nginx.conf").write_text(NGINX.format(place=place, port=port, root=store))
    server = subprocess.Popen(["nginx", "-c", str(place / "nginx.conf")], stderr=subprocess.DEVNULL)
    try:
        begun = time.monotonic()
        while not _answers(port):
            if server.poll() is not None or time.monotonic() - begun > STARTED:
                raise RuntimeError("nginx does not start")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(place)


@contextlib.contextmanager
def moto(store: Path) -> Iterator[str]:
    """Upload a store to moto's server, which runs in this process."""
    import obstore
    from moto.server import ThreadedMotoServer
    from obstore.store import S3Store

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    try:
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")).close()
        client = S3Store("bucket", client_options={"allow_http": True}, **_keys(endpoint))
        for file in store.rglob("*"):
            if file.is_file():
                obstore.put(client, str(file.relative_to(store)), file)
        yield endpoint
    finally:
        server.stop()


def _keys(endpoint: str) -> dict[str, Any]:
    return {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "nobody", "secret_access_key": "none"}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
        return True
    return False


class Cold:
    """Batches from an empty cache: how long each took, and what it asked of the server."""

    def __init__(self, endpoint: str, place: Path, block: int, batches: int, seed: int) -> None:
        cache = place / f"cache-{block}-{seed}"
        shutil.rmtree(cache, ignore_errors=True)
        bucket = db.Bucket("s3://bucket", cache=cache, block_bytes=block, options=_keys(endpoint))
        begun = time.perf_counter()
        self.seconds, self.requests, self.received = list[float](), list[int](), list[int]()
        with db.ReplayBuffer(bucket, mode="r", seed=seed) as buffer:
            self.opening = time.perf_counter() - begun
            before = buffer.stats()["bucket"]
            self.opening_requests = before["requests"]
            for _ in range(batches):
                begun = time.perf_counter()
                buffer.sample(BATCH)
                self.seconds.append(time.perf_counter() - begun)
                after = buffer.stats()["bucket"]
                self.requests.append(after["requests"] - before["requests"])
                self.received.append(after["bytes_received"] - before["bytes_received"])
                before = after
        shutil.rmtree(cache)


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("bucket", args.seed, quick=args.quick)
    steps, rounds, batches = (20_000, 3, 5) if args.quick else (200_000, 15, 20)
    place = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        store = stored(place / "store", steps)
        row = sum(512 * file.stat().st_blocks for file in (store / "obs").iterdir()) / steps
        wanted = BATCH * (STACK + 1) * row
        with served(store) as (endpoint, server):
            print(f"  {steps:,} steps, {row:,.0f} bytes a frame; server: {server}")
            warm(report, endpoint, server, store, place, rounds, args.seed)
            for block in BLOCKS:
                cold(report, endpoint, server, store, place, block, batches, args.seed, wanted)
    finally:
        shutil.rmtree(place)
    report.write(args.json)


def warm(report: Report, endpoint: str, server: str, store: Path, place: Path, rounds: int, seed: int) -> None:
    """Compare batches when all is in the cache."""
    bucket = db.Bucket("s3://bucket", cache=place / "cache", options=_keys(endpoint))
    with db.ReplayBuffer(bucket, mode="r", seed=seed) as remote, db.ReplayBuffer(store, mode="r", seed=seed) as local:
        begun = time.perf_counter()
        for _ in remote.batches(4096):
            pass
        read, received = time.perf_counter() - begun, remote.stats()["bucket"]["bytes_received"]
        report.row(f"a pass over everything, cold, {server}", received / read / 1e6, "MB/s")
        for buffer in (remote, local):
            for _ in range(30):
                buffer.sample(BATCH)
        competitors = {"a directory": lambda _: local.sample(BATCH), "a bucket, warm": lambda _: remote.sample(BATCH)}
        seconds = in_turn(rounds, competitors, lambda: None, each=20)
    for name, taken in seconds.items():
        report.times(f"sample({BATCH}): {name}", taken)
    found = ratio(seconds["a bucket, warm"], seconds["a directory"], each=20)
    report.row(f"sample({BATCH}), warm: times of a directory's", found, "x", at_most=1.5)


def cold(
    report: Report, endpoint: str, server: str, store: Path, place: Path, block: int, batches: int, seed: int, wanted: float
) -> None:
    """Compare batches while the cache fills."""
    seconds = list[float]()
    runs = []
    with db.ReplayBuffer(store, mode="r", seed=seed) as local:
        for n in range(3):
            runs.append(Cold(endpoint, place, block, batches, seed + n))
            for _ in range(batches):
                begun = time.perf_counter()
                local.sample(BATCH)
                seconds.append(time.perf_counter() - begun)
    name, later = f"blocks of {block // 1024} KiB, {server}", [taken for run in runs for taken in run.seconds[1:]]
    report.times(f"cold, {name}: opening", [run.opening for run in runs])
    report.times(f"cold, {name}: first batch", [run.seconds[0] for run in runs])
    report.times(f"cold, {name}: batches 2 to {batches}", later)
    usual = block == db.Bucket("s3://bucket").block_bytes
    for what, part in ((" first batch", slice(0, 1)), (f" batches 2 to {batches}", slice(1, None))):
        taken = [float(np.median(run.seconds[part])) for run in runs]
        found = ratio(taken, [float(np.median(seconds))] * len(runs))
        report.row(f"cold, {name},{what}: times of a directory's", found, "x", at_most=10 if usual else None)
    for what, part in (("first batch", slice(0, 1)), (f"batches 2 to {batches}", slice(1, None))):
        requests = np.mean([n for run in runs for n in run.requests[part]])
        received = np.mean([n for run in runs for n in run.received[part]])
        report.row(f"cold, blocks of {block // 1024} KiB, {what}: requests a batch", float(requests), "")
        report.row(f"cold, blocks of {block // 1024} KiB, {what}: bytes received for a byte wanted", float(received / wanted), "")


if __name__ == "__main__":
    main()
