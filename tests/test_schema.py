"""Schemas: columns from spaces, and the way to attributes and back."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.schema.schema import Schema
from tests.amounts import examples

FRAMES = Schema.of({"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")})

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]
PATHS = ["obs", "action", "extra/deep/er", "extra/x", "möglich", "a1"]
COLUMNS = st.builds(
    db.Column, st.lists(st.integers(1, 9), max_size=3).map(tuple), st.sampled_from(DTYPES), allow_nan=st.booleans()
)


def test_spaces_become_columns_and_reward_and_flags_are_added() -> None:
    observation = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (84, 84), np.uint8),
            "inner": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.MultiBinary(4)}),
        }
    )
    schema = Schema.from_spaces(observation, spaces.MultiDiscrete([2, 3]), {"log_prob": db.Column()})
    assert dict(schema.columns) == {
        "obs/image": db.Column((84, 84), "uint8"),
        "obs/inner/a": db.Column((), "int64"),
        "obs/inner/b": db.Column((4,), "int8"),
        "action": db.Column((2,), "int64"),
        "reward": db.Column((), "float32"),
        "terminated": db.Column((), "bool"),
        "truncated": db.Column((), "bool"),
        "is_last": db.Column((), "bool"),
        "row_checksum": db.Column((3,), "uint32"),
        "log_prob": db.Column((), "float32"),
    }
    assert schema.obs == ("obs/image", "obs/inner/a", "obs/inner/b")
    assert schema.step == ("action", "reward", "terminated", "truncated", "log_prob")


def test_a_column_is_the_same_however_it_is_written() -> None:
    assert db.Column((3,), ">f4") == db.Column([3], np.float32) == db.Column((np.int64(3),), "float32")  # type: ignore[arg-type]
    assert db.Column((3,)) != db.Column((3,), allow_nan=True)
    assert str(db.Column((84, 84), "uint8")) == "uint8[84, 84]"
    assert "NaN allowed" in str(db.Column((), "float32", allow_nan=True))
    assert db.Column((2, 3), "complex64").row_bytes == 48


@examples(25, 1000)
@given(st.dictionaries(st.sampled_from(PATHS), COLUMNS, min_size=1))
def test_a_schema_comes_back_from_its_attributes(columns: dict[str, db.Column]) -> None:
    schema = Schema.of(columns)
    again = Schema.from_attributes(schema.to_attributes())
    assert again == schema
    assert list(again) == list(schema)
    assert schema.difference(again) == ""


def test_the_difference_of_schemas_names_each_column_that_differs() -> None:
    other = Schema.of({"obs": db.Column((84, 84), "float32"), "deed": db.Column((2,), "int8", allow_nan=True)})
    assert FRAMES.difference(other).splitlines() == [
        "  obs: stored uint8[84, 84], asked for float32[84, 84]",
        "  action: stored int64[], asked for nothing",
        "  deed: stored nothing, asked for int8[2] (NaN allowed)",
    ]
