"""What we export, read by the library webdataset: see `make interop`."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

from diskbuffer.formats import export
from tests.formats.interop.environments import python_of
from tests.formats.test_webdataset import a_store, assert_holds

OWN = """
import pickle, sys
from pathlib import Path
import webdataset
shards = sorted(str(shard) for shard in Path(sys.argv[1]).glob("*.tar"))
samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
found = [{name: value for name, value in one.items() if not name.startswith("__")} for one in samples]
pickle.dump(found, open(sys.argv[2], "wb"))
"""


def test_webdataset_reads_an_export(tmp_path: Path) -> None:
    python = python_of("webdataset", "webdataset")
    store = a_store(tmp_path / "store", 400)
    export("webdataset", store, tmp_path / "out", shard_mb=1, progress=False)
    subprocess.run([python, "-c", OWN, str(tmp_path / "out"), str(tmp_path / "read")], check=True)
    assert_holds(pickle.loads((tmp_path / "read").read_bytes()), store)
