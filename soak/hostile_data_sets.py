"""Changes to data sets that no program of their formats would make: bytes, headers, lengths, names, links, keys of JSON.

`mutate` changes a data set as a seed says. What it puts in leads to a directory beside it, or names the module `CANARY`, so that
a reader which follows it is seen.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import random
import re
import shutil
import socket
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from soak.fuzz import HOSTILE, NUMBERS, hostile_json, mutate_json
from tests.support.specimens import replace

CANARY = "soak_canary"  # a module that nothing has a reason to import
ESCAPES = ("\x1b]0;owned\x07", "\x1b[2J\x1b[31m", "a\rb", "\x9b31m", "\u202egnp", "line\nline")
_JSON = (".json", ".zarray", ".zattrs", ".zgroup")
_CLASSES = (
    f"{CANARY}.Thing",
    f"{CANARY}.thing.Thing",
    "antigravity.Thing",
    f"tensorflow_datasets.core.features.../{CANARY}.Thing",
    "tensorflow_datasets.core.features.feature_test.AnInputConnector",
    "tensorflow_datasets.testing.Thing",
    f"tensorflow_datasets.core.features.{CANARY}.Thing",
    "tensorflow_datasets.core.features.text_feature.Text",
    "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
)
_SPELLINGS = (("pythonClassName", "jsonFeature"), ("python_class_name", "json_feature"))
Change = Callable[[Path, Path, random.Random], str]


def mutate(root: Path, outside: Path, rng: random.Random, source: Path) -> list[str]:
    """Change the data set in a directory; return what was done.

    `outside` is a directory beside it with the same files, which nobody has a reason to open. `source` is what is imported,
    `root` or something in it: the user named it, and so may name a link, which is why it becomes none.
    """
    count, done = rng.choice((1, 1, 1, 2, 3)), list[str]()
    for structured in (True, False):  # first what needs the files to be readable
        for _ in range(20):
            if len(done) >= count or (structured and rng.random() < 0.4):
                break
            change = rng.choice(_STRUCTURED if structured else _BYTES)
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):  # most formats have no use for most
                what = _link(root, outside, rng, source) if change is _link else change(root, outside, rng)
                done.append(f"{change.__name__.strip('_')}: {what}")
    return done


def _files(root: Path, *suffixes: str) -> list[Path]:
    found = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if not suffixes or path.name.endswith(suffixes)]


def _texts(outside: Path, rng: random.Random) -> str:
    """Return a text that leads somewhere, or is another kind of harm."""
    inner = rng.choice(_files(outside))
    paths = [f"{'../' * up}outside/{inner.relative_to(outside)}" for up in (1, 2, 3)]
    return rng.choice((str(inner), *paths, str(outside), *ESCAPES, *_CLASSES))


# Bytes


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few that are others, missing, or more; or with another number among them."""
    size = len(data)
    if not size:
        return rng.randbytes(8)
    edges = (rng.randrange(min(64, size)), size - 1 - rng.randrange(min(512, size)))  # headers, and footers
    at = rng.choice((rng.randrange(size), rng.choice(edges)))
    length, other, width = rng.choice((1, 1, 2, 4, 8, 16, 100, 1000)), rng.randrange(size), rng.choice((1, 2, 4, 8))
    value = rng.choice((*NUMBERS, rng.randrange(2**16))) % 2 ** (8 * width)
    flipped = bytes([data[at] ^ 1 << rng.randrange(8)])
    end, new = rng.choice(
        (
            (at + 1, flipped),
            (at + 1, flipped),
            (at + 1, bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))])),
            (at, rng.randbytes(length)),
            (at + length, b""),
            (at + length, bytes(min(length, size - at))),
            (size, b""),
            (at + length, data[other : other + length]),
            (at + width, value.to_bytes(width, rng.choice(("little", "little", "big")))),
        )
    )
    return data[:at] + new + data[end:]


def _bytes(root: Path, _: Path, rng: random.Random) -> str:
    file = rng.choice(_files(root))
    replace(file, changed_bytes(file.read_bytes(), rng))
    return str(file.relative_to(root))


def _whole(root: Path, _: Path, rng: random.Random) -> str:
    """Empty, remove, swap or double a file."""
    file, other = rng.choice(_files(root)), rng.choice(_files(root))
    data, others = file.read_bytes(), other.read_bytes()
    ways: dict[str, Callable[[], object]] = {
        "empty": lambda: replace(file, b""),
        "removed": file.unlink,
        "swapped": lambda: replace(other, data),
        "copied": lambda: replace(other, data),
        "zeros": lambda: replace(file, bytes(len(data))),
        "large": lambda: os.truncate(file, 2**40),
    }
    way = rng.choice(list(ways))
    ways[way]()
    if way == "swapped":
        replace(file, others)
    return f"{file.relative_to(root)} {way}, {other.relative_to(root)}"


def _name(root: Path, _: Path, rng: random.Random) -> str:
    """Give a file or a directory another name."""
    path = rng.choice(sorted(root.rglob("*")))
    name = rng.choice((path.name + rng.choice(ESCAPES), f"{rng.choice(ESCAPES)}{path.name}", "x" * 200 + path.suffix, "\udcff"))
    name = rng.choice((name, path.name.replace("0", "9"), f"{path.stem}-1{path.suffix}", f"1{path.name}"))
    path.rename(path.with_name(name))
    return f"{path.relative_to(root)} as {name!r}"


def _link(root: Path, outside: Path, rng: random.Random, source: Path | None = None) -> str:
    """Have a name stand for what is elsewhere, for a pipe, a socket, a device or the directory that it is in."""
    path = rng.choice(sorted(path for path in root.rglob("*") if not path.is_symlink() and path != source))
    elsewhere = outside / path.relative_to(root)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    links: dict[str, str | Path] = {
        "link": elsewhere,
        "relative": os.path.relpath(elsewhere, path.parent),
        "link to a pipe": outside / "pipe",
        "device": "/dev/zero",
        "cycle": rng.choice((".", "..", path.name)),
        "nothing": outside / "missing",
    }
    way = rng.choice(("link", "link", *links, "pipe", "socket"))
    if way == "pipe":
        os.mkfifo(path)
    elif way == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as opened:
            opened.bind(str(root.parent / "s"))  # the path of a socket must be short
        (root.parent / "s").rename(path)
    else:
        path.symlink_to(links[way])
    return f"{path.relative_to(root)} {way}"


# JSON


def _json(root: Path, outside: Path, rng: random.Random) -> str:
    """Change what a file of JSON says."""
    file = rng.choice(_files(root, *_JSON))
    told = json.loads(file.read_text())
    what = changed_json(told, outside, rng)
    text = hostile_json(told)
    if rng.random() < 0.1:  # a key twice, of which parsers take the last, or none
        key = rng.choice(re.findall(rb'"[^"]*":', text))
        text = text.replace(key, key + hostile_json(rng.choice(HOSTILE)) + b", " + key, 1)
        what += f", {key!r} twice"
    replace(file, text)
    return f"{file.relative_to(root)}: {what}"


def changed_json(told: Any, outside: Path, rng: random.Random) -> str:
    """Change a value of JSON in place; return what was done."""
    dicts = [one for one in _inner(told) if isinstance(one, dict) and one]
    if not dicts or rng.random() < 0.3:
        return mutate_json(told, rng)
    place = rng.choice(dicts)
    key, way = rng.choice(list(place)), rng.randrange(7)
    if way == 0:
        place[key] = _texts(outside, rng)
        return f"{key!r} is {place[key]!r}"
    if way in (1, 2):
        name = _spelled(key, rng) if way == 1 else _texts(outside, rng)
        place[name] = place.pop(key)
        return f"{key!r} named {name!r}"
    if way == 3:
        name = rng.choice(("type", "_type", "pythonClassName", "python_class_name", "protoCls", "@type", "module_name"))
        place[name] = rng.choice(_CLASSES)
        return f"{name!r} is {place[name]!r}"
    if way == 4:
        return _class_in(dicts, rng)
    texts = [key for key, value in place.items() if isinstance(value, str) and value.startswith("{")]
    if way == 5 and texts:
        inner = json.loads(place[texts[0]])
        what = changed_json(inner, outside, rng)
        place[texts[0]] = json.dumps(inner)
        return f"in the text of {texts[0]!r}: {what}"
    return mutate_json(place, rng)


def _inner(told: Any) -> list[Any]:
    """Return a value, and all that are in it."""
    found, left = [], [told]
    while left:
        one = left.pop()
        found.append(one)
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return found


def _spelled(key: str, rng: random.Random) -> str:
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
    camel = re.sub(r"_(\w)", lambda found: found[1].upper(), key)
    return rng.choice((snake, camel, key.upper(), key.lower(), f" {key}", key + "\0"))


def _class_in(dicts: list[dict[str, Any]], rng: random.Random) -> str:
    """Name a class where TFDS looks for one: in either spelling of its JSON, in older JSON, in JSON within a text."""
    places = [one for one in dicts if "pythonClassName" in one] or dicts
    place, name = rng.choice(places), rng.choice(_CLASSES)
    way, (key, json_key) = rng.randrange(4), rng.choice(_SPELLINGS)
    if way == 0:
        place.pop("pythonClassName", None)
        place[key] = name
    elif way == 1:
        kept = dict(place)
        place.clear()
        place |= {"type": name, "content": rng.choice((kept, {}, json.dumps(kept)))}
    else:
        old = {"a": {"type": name, "content": {}}}
        contents: tuple[Any, ...] = (
            old,
            {"a": {key: name, "tensor": {}}},
            {"feature": {key: name, "tensor": {}}, "length": None},
            {"a": {key: _CLASSES[-2], "jsonFeature": {"json": json.dumps(old)}}},
            {"names_file": "../outside/pipe"},
        )
        of = rng.choice(("features_dict.FeaturesDict", "sequence_feature.Sequence", "class_label_feature.ClassLabel"))
        for field in ("text", "tensor", "image", "sequence", "featuresDict", "classLabel"):
            place.pop(field, None)
        place["pythonClassName"] = f"tensorflow_datasets.core.features.{of}"
        place[json_key] = {"json": json.dumps(rng.choice(contents))}
    return f"the class {name}, way {way}"


# Blosc


def blosc_changed(data: bytes, rng: random.Random) -> bytes:
    """Return a Blosc chunk whose header claims something else."""
    found = bytearray(data)
    size, _, packed = struct.unpack_from("<III", found, 4)
    values = (0, 1, 15, 16, 17, size, size + 1, size * 2, packed, packed + 1, packed - 1, 4096, 100_000_000, 2**31 - 1, 2**32 - 1)
    value = rng.choice((*values, len(data) + rng.randrange(10_000))) % 2**32
    words = {"size": 4, "block": 8, "packed": 12, "starts": 16 + 4 * rng.randrange(max(1, min(8, (len(data) - 16) // 4)))}
    fields = {"version": (0, 1), "flags": (2,), "type size": (3,)}
    field = rng.choice((*words, *fields, "packed", "packed", "cut", "header"))
    if field == "cut":
        return data[: rng.choice((0, 1, 4, 15, 16, 17, len(data) - 1, len(data) // 2))]
    if field in fields:
        found[rng.choice(fields[field])] = rng.choice((0, 1, 2, 8, 255, rng.randrange(256)))
    else:
        struct.pack_into("<I", found, words.get(field, 12), value)
    if field == "header" or (field == "packed" and rng.random() < 0.5):
        found[2] |= 2  # as it is: nothing but a copy
    return bytes(found[:16] if field == "header" else found)


def _is_blosc(data: bytes) -> bool:
    return len(data) > 16 and data[0] in (1, 2) and int.from_bytes(data[12:16], "little") == len(data)


def _blosc(root: Path, _: Path, rng: random.Random) -> str:
    file = rng.choice([file for file in _files(root) if _is_blosc(file.read_bytes())])
    replace(file, blosc_changed(file.read_bytes(), rng))
    return str(file.relative_to(root))


# Zips


def _member(root: Path, outside: Path, rng: random.Random) -> str:
    """Change what is in a zip, whose checksums are then those of the new contents."""
    file = rng.choice([file for file in _files(root) if zipfile.is_zipfile(file)])
    with zipfile.ZipFile(file) as opened:
        members = [(member.filename, opened.read(member), member.compress_type) for member in opened.infolist()]
    at = rng.randrange(len(members))
    name, data, way = members[at]
    what = "bytes"
    if rng.random() < 0.2:
        what, name = "name", rng.choice((_texts(outside, rng), members[0][0], f"{name}/", ""))
    elif name.endswith(".npy") and rng.random() < 0.7:
        what, data = "header", _npy_changed(data, rng)
    elif name.endswith(_JSON):
        told = json.loads(data)
        what = changed_json(told, outside, rng)
        data = json.dumps(told).encode(errors="surrogatepass")
    elif _is_blosc(data) and rng.random() < 0.8:
        what, data = "blosc", blosc_changed(data, rng)
    else:
        data = changed_bytes(data, rng)
    members[at] = (name, data, way)
    members += [members[at]] * (rng.random() < 0.05)
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as target:
        for name, data, way in members:
            target.writestr(zipfile.ZipInfo(name), data, way)
    replace(file, into.getvalue())
    return f"{file.relative_to(root)}, {members[at][0]!r}: {what}"


def _npy_changed(data: bytes, rng: random.Random) -> bytes:
    """Return an array of numpy's whose header says something else."""
    length = struct.unpack_from("<H", data, 8)[0]
    told = ast.literal_eval(data[10 : 10 + length].decode().strip())
    shapes = ((), (2**62,), (-1,), (10**9, 10**9), (*told["shape"], 1), told["shape"][::-1], (0, *told["shape"]), (1,) * 40)
    descriptions = ("|O", "<f8", "<f4", "|u1", "<c16", "|S5", "<U3", ">i4", "|V0", "<M8[s]", [("a", "<f4")], 3)
    values = {"shape": (*shapes, (told["shape"] or (1,))[:1]), "descr": descriptions, "fortran_order": (True, "yes", None)}
    field = rng.choice((*values, "text"))
    if field != "text":
        told[field] = rng.choice(values[field])
    text = rng.choice(("__import__('soak_canary')", "[" * 4000, "{'descr': 1}", "\0")) if field == "text" else repr(told)
    header = text.encode().ljust(length - 1)[: 2**16 - 2] + b"\n"
    return data[:6] + bytes([rng.choice((1, 1, 1, 2, 3, 9)), 0]) + struct.pack("<H", len(header)) + header + data[10 + length :]


def _zip_records(root: Path, _: Path, rng: random.Random) -> str:
    """Have a zip's own records claim something else."""
    file = rng.choice([file for file in _files(root) if zipfile.is_zipfile(file)])
    data = bytearray(file.read_bytes())
    kinds = {
        b"PK\x01\x02": (8, 10, 16, 20, 24, 28, 30, 42),
        b"PK\x03\x04": (6, 8, 18, 22, 26),
        b"PK\x05\x06": (8, 10, 12, 16, 20),
    }
    record = rng.choices(list(kinds), (4, 4, 2))[0]
    places = [found.start() for found in re.finditer(re.escape(record), data)]
    at, field = rng.choice(places), rng.choice(kinds[record])
    struct.pack_into("<I", data, at + field, rng.choice((*NUMBERS, len(data), rng.randrange(len(data)))) % 2**32)
    replace(file, bytes(data))
    return f"{file.relative_to(root)}: {record!r} at {at}, {field}"


# HDF5


def _hdf5(root: Path, outside: Path, rng: random.Random) -> str:
    import h5py

    file = rng.choice(_files(root, ".hdf5", ".h5"))
    with h5py.File(file, "r+", locking=False) as opened:
        names: list[str] = []
        opened.visit(names.append)
        name = rng.choice(names)
        arrays = [name for name in names if isinstance(opened[name], h5py.Dataset)]
        way = rng.choice(list(_HDF5_WAYS))
        if way not in ("attribute", "cycle", "name", "deleted"):
            name = rng.choice(arrays)
        what = _HDF5_WAYS[way](opened, name, outside, rng)
    return f"{file.relative_to(root)}: {name} {way} {what or ''}"


def _attribute(file: Any, name: str, outside: Path, rng: random.Random) -> Any:
    import h5py

    place = rng.choice((file, file[name], file[name].parent))
    values: tuple[Any, ...] = (_texts(outside, rng), "[" * 100_000, 2**63 - 1, -1, np.nan, np.zeros(50_000), h5py.Empty("f4"))
    values += (b"\xff\xfe", np.zeros(3, [("a", "f4")]), rng.choice(list(file)), file.ref, json.dumps({"env_name": [1]}), [b"a"])
    known = list(place.attrs)
    key = rng.choice((*known, *known, _texts(outside, rng), "total_steps", "num_samples", "seed", "a/b"))
    value = rng.choice(values)
    if key in place.attrs and isinstance(place.attrs[key], str) and rng.random() < 0.5:
        told = json.loads(place.attrs[key])
        what = changed_json(told, outside, rng)
        place.attrs[key] = json.dumps(told)
        return what
    with contextlib.suppress(KeyError):
        del place.attrs[key]
    place.attrs[key] = value
    return f"{key!r} {value!r:.100}"


def _other_array(file: Any, name: str, _: Path, rng: random.Random) -> Any:
    import h5py

    old = file[name][()]
    del file[name]
    odd = np.atleast_1d(old)
    cast = odd.astype(rng.choice(("u1", "i8", "f2", "c8", ">f4", "f8", "bool"))) if odd.dtype.kind in "biuf" else odd
    packed = {"compression": rng.choice(("gzip", "lzf")), "shuffle": True, "fletcher32": True}
    reshaped = odd[:-1], np.concatenate([odd, odd]), odd[..., None], odd.reshape(-1), odd.reshape(-1)[0]
    others = cast, [b"text"] * len(odd), np.zeros(odd.shape, [("a", "f4"), ("b", "u1")]), h5py.Empty("f4")
    cases: tuple[dict[str, Any], ...] = (
        *({"data": data} for data in (*reshaped, *others)),
        {"shape": odd.shape, "dtype": odd.dtype},
        {"shape": (10**12, *odd.shape[1:]), "dtype": odd.dtype, "chunks": True},
        {"shape": (*odd.shape[:1], 2**33), "dtype": "u1", "chunks": (1, 2**28)},
        *({"shape": odd.shape[:1], "dtype": dtype} for dtype in (h5py.vlen_dtype(np.uint8), h5py.string_dtype())),
        *({"shape": odd.shape, "dtype": dtype} for dtype in (h5py.enum_dtype({"a": 1}), h5py.opaque_dtype("V4"), h5py.ref_dtype)),
        {"data": odd, "chunks": True, **packed},
        {"data": odd, "chunks": True, "maxshape": (None,) * odd.ndim, "scaleoffset": 0},
    )
    number = rng.randrange(len(cases))
    file.create_dataset(name, **cases[number])
    return number


def _linked(file: Any, name: str, outside: Path, rng: random.Random) -> Any:
    import h5py

    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    other = str(rng.choice(_files(outside)))
    way = rng.randrange(4)
    if way == 0:
        file[name] = h5py.ExternalLink(other, rng.choice((name, "/")))
    elif way == 1:
        file[name] = h5py.SoftLink(rng.choice(("/", name, "/missing", next(iter(file)))))
    elif way == 2:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[...] = h5py.VirtualSource(other, name, shape)
        file.create_virtual_dataset(name, layout)
    else:
        file.create_dataset(name, shape, dtype, external=[(other, 0, h5py.h5f.UNLIMITED)])
    return way


def _renamed(file: Any, name: str, _: Path, rng: random.Random) -> str:
    new = name.rsplit("/", 1)[0] + "/" if "/" in name else ""
    names = ("demo_01", "traj_00", "episode_9", "demo_" + "9" * 30, "obs", "action", "actions", "\u0663", ".")
    new += rng.choice((*ESCAPES, *names))
    file[new] = file[name]
    if rng.random() < 0.5:
        del file[name]
    return repr(new)


def _cycle(file: Any, *rest: Any) -> str:
    rng: random.Random = rest[-1]
    groups: list[str] = []
    file.visititems(lambda path, one: groups.append(path) if not hasattr(one, "dtype") else None)
    place = rng.choice(groups)
    file[f"{place}/again"] = file[rng.choice(groups)]
    return place


_HDF5_WAYS: dict[str, Callable[[Any, str, Path, random.Random], Any]] = {
    "attribute": _attribute,
    "array": _other_array,
    "link": _linked,
    "name": _renamed,
    "cycle": _cycle,
    "deleted": lambda file, name, *_: file.pop(name),
}


# Tables of Arrow


def _table(root: Path, outside: Path, rng: random.Random) -> str:
    """Write a table anew with another column."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    file = rng.choice(_files(root, ".parquet", ".arrow"))
    if file.suffix == ".parquet":
        table = parquet.read_table(file)
    else:
        with pa.OSFile(str(file)) as opened:
            table = pa.ipc.open_file(opened).read_all()
    name = rng.choice(table.column_names)
    at, column = table.column_names.index(name), table.column(name).combine_chunks()
    values = column.to_pylist()
    hostile = rng.choice((None, -1, 2**62, 2**31, 0, 1e308, float("nan"), _texts(outside, rng), b"\xff" * 99, [1] * 99, [[1]]))
    row = rng.randrange(len(values))
    changes: tuple[Callable[[], Any], ...] = (
        lambda: table.drop_columns([name]),
        lambda: table.rename_columns([_texts(outside, rng) if one == name else one for one in table.column_names]),
        lambda: table.append_column(name, column),
        lambda: rng.choice((table.slice(1), table.slice(0, len(table) - 1), pa.concat_tables([table, table]))),
        lambda: table.set_column(at, name, pa.array([hostile] * len(values))),
        lambda: table.set_column(at, name, column.dictionary_encode()),
        lambda: table.set_column(at, name, pa.array([*values[:row], hostile, *values[row + 1 :]], column.type)),
    )
    table = rng.choice(changes)()
    into = io.BytesIO()
    if file.suffix == ".parquet":
        parquet.write_table(table, into, compression=rng.choice(("snappy", "zstd", "none", "gzip")))
    else:
        with pa.ipc.new_file(into, table.schema) as writer:
            writer.write_table(table)
    replace(file, into.getvalue())
    return f"{file.relative_to(root)}: {name!r}, {hostile!r:.50}"


# Records


def _record(root: Path, _: Path, rng: random.Random) -> str:
    """Write ArrayRecord anew with other bytes in a record, whose checksums are then right."""
    array_record: Any = importlib.import_module("array_record.python.array_record_module")
    file = next(file for file in _files(root) if "array_record" in file.name)
    reader = array_record.ArrayRecordReader(str(file))
    records = list(reader.read_all())
    reader.close()
    at = rng.randrange(len(records))
    records[at] = changed_bytes(records[at], rng)
    if rng.random() < 0.1:
        records = rng.choice((records[:-1], records * 2, []))
    file.unlink()
    writer = array_record.ArrayRecordWriter(str(file), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return f"record {at}"


# MP4


def _boxes(root: Path, _: Path, rng: random.Random) -> str:
    """Have a box of a video, or a table in it, claim another length."""
    file = rng.choice(_files(root, ".mp4"))
    data = bytearray(file.read_bytes())
    kinds = b"ftyp|moov|mdat|trak|mdia|minf|stbl|stsd|stts|stsc|stsz|stco|stss|ctts|mvhd|tkhd|mdhd|avcC|elst|dref|url |colr"
    places = [found.start() for found in re.finditer(kinds, data)]
    at = rng.choice(places) + rng.choice((-4, 8, 12, 16, 20, 24, 28))
    struct.pack_into(">I", data, at, rng.choice((*NUMBERS, 0, 1, 7, 8, len(data))) % 2**32)
    replace(file, bytes(data))
    return f"{file.relative_to(root)} at {at}"


_STRUCTURED: tuple[Change, ...] = (_json, _json, _blosc, _member, _member, _zip_records, _hdf5, _hdf5, _table, _record, _boxes)
_BYTES: tuple[Change, ...] = (_bytes, _bytes, _bytes, _bytes, _whole, _name, _link, _link)
