"""Conditions on episodes: against Python's own evaluation of the same text, row by row; and what is no condition."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.episode_table.conditions import NUMBERS, TEXTS, parse
from diskbuffer.episode_table.table import EpisodeTable
from diskbuffer.errors import InputError
from diskbuffer.schema.endings import ENDINGS
from tests.amounts import examples

TAGS = ("", "demo", "expert demo", "x")


def table(n: int, seed: int) -> EpisodeTable:
    rng = np.random.default_rng(seed)
    returns = rng.integers(-3, 4, n) / 2
    returns[rng.random(n) < 0.1] = np.nan
    returns[rng.random(n) < 0.1] = np.inf
    episode, stream, start, length, age = (rng.integers(0, 5, n) for _ in range(5))
    ending, tag = (np.array([choices[i] for i in rng.integers(0, len(choices), n)], "U12") for choices in (ENDINGS, TAGS))
    return EpisodeTable(episode, stream, start, length, returns, ending, tag, age, rng.random(n) < 0.5, rng.integers(0, 300, n))


numbers = st.one_of(
    st.sampled_from(NUMBERS), st.integers(-4, 5).map(str), st.floats(-3, 3).map(repr), st.sampled_from(["nan", "inf", "-inf"])
)
texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(["'demo'", '"x"', "''"]))
orders = st.sampled_from(["<", "<=", "==", "!=", ">=", ">"])
same = st.sampled_from(["==", "!="])
lists = st.lists(st.integers(0, 4).map(str), min_size=1, max_size=3).map(lambda parts: f"({', '.join(parts)},)")
comparisons = st.one_of(
    st.tuples(numbers, orders, numbers).map(" ".join),
    st.tuples(numbers, orders, numbers, orders, numbers).map(" ".join),
    st.tuples(st.just("tag"), same, texts).map(" ".join),
    st.tuples(st.just("ending"), same, st.sampled_from(ENDINGS).map(repr)).map(" ".join),
    st.tuples(texts, st.sampled_from(["in", "not in"]), texts).map(" ".join),
    st.tuples(numbers, st.sampled_from(["in", "not in"]), lists).map(" ".join),
    st.sampled_from(["whole", "not whole", "whole == True", "whole != False"]),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: "({}) {} ({})".format(*parts)),
        inner.map(lambda part: f"not ({part})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
    ),
    max_leaves=6,
)


@examples(50, 3000)
@given(conditions, st.integers(0, 5))
def test_a_condition_holds_where_python_says_so(text: str, seed: int) -> None:
    episodes = table(12, seed)
    expected = []
    for row in episodes.to_rows():
        names: dict[str, Any] = row | {"rETURN": row["return"], "nan": math.nan, "inf": math.inf}
        expected.append(bool(eval(text.replace("return", "rETURN"), {"__builtins__": {}}, names)))
    assert parse(text).select(episodes).tolist() == expected


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("tag is None", "tag == ''"),
        ("tag is not None", "tag != ''"),
        ("None == tag", "tag == ''"),
        ("tag in (None, 'x')", "tag == '' or tag == 'x'"),
        ("return == None", "not return == return"),
        ("return in [0, None]", "return == 0 or return != return"),
        ("  length>1  ", "length > 1"),
        ("length > 99999999999999999999", "length > 1e19"),
        ("'return' in tag", "tag == 'return'"),
        ("-2 < return", "return > -2.0"),
    ],
)
def test_what_python_has_no_word_for(text: str, meant: str) -> None:
    episodes = table(60, 1)
    assert parse(text).select(episodes).tolist() == parse(meant).select(episodes).tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lenght > 3", "did you mean 'length'"),
        ("foo == 1", "'foo' is not known"),
        ("ending == terminated", "did you mean the text 'terminated', in quotes"),
        ("ending == 'terminate'", "endings are 'terminated', 'truncated', 'cut off', 'running'"),
        ("'done' == ending", "no episode ends as 'done'"),
        ("ending in ('cut off', 'cut')", "no episode ends as 'cut'"),
        ("length > 'x'", "length is a number and 'x' is a text"),
        ("tag > 'x'", "> is for numbers"),
        ("length", "length alone is neither true nor false"),
        ("3", "3 alone is neither"),
        ("length + 1 > 3", "no arithmetic"),
        ("__import__('os').system('true')", "no calls"),
        ("(lambda: 1)() == 1", "not known here"),
        ("tag.upper() == 'X'", "not known here"),
        ("length[0] == 1", "not known here"),
        ("length if whole else age", "not known here"),
        ("f'{length}' == 'x'", "not known here"),
        ("b'x' == tag", "neither a number, a text"),
        ("1j < length", "neither a number, a text"),
        ("length == 3 # no", "unexpected character '#'"),
        ("length = 3", "invalid syntax"),
        ("length >", "invalid syntax"),
        ("", "invalid syntax"),
        ("length > 3\nor whole", "one line"),
        ("'", "unterminated string"),
        ("((length > 3", "was never closed"),
        ("length in 3", "'in' needs a list"),
        ("length in (1, (2,))", "a list has constants only"),
        ("length in (1, age)", "a list has constants only"),
        ("length is 3", "'is' is for None only"),
        ("None < length", "None can be compared by == and != only"),
        ("whole == 1", "whole is true or false and 1 is a number"),
        ("return := 3", "invalid syntax"),
        ("9" * 5000 + " > length", "2,000 characters at most"),
        ("not " * 400 + "whole", "nested in more than 50 levels"),
        ("(" * 900 + "whole" + ")" * 900, "too many nested parentheses"),
        ("length > \0", "null bytes"),
    ],
)
def test_what_is_no_condition_is_told_with_what_is_known(text: str, said: str) -> None:
    with pytest.raises(InputError, match="(?s).*" + re.escape(said)) as raised:
        parse(text)
    message = str(raised.value)
    if len(text) < 100:
        assert "Compare episode, stream, start, length, return" in message


def test_an_error_points_at_its_place() -> None:
    with pytest.raises(InputError) as raised:
        parse("length > 3 and tag == 'ü' and nonsense == 1")
    lines = str(raised.value).splitlines()
    assert lines[1][lines[2].index("^") :].startswith("nonsense")


@examples(100, 2000)
@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text("lengthtagorandnotin()<>='\"1., \\#{}[]:", max_size=40))
def test_any_text_is_a_condition_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse(text).select(table(3, 0)).shape == (3,)


def test_an_empty_table_has_no_episodes() -> None:
    assert parse("whole or tag == 'x' or length in (1, 2)").select(table(0, 0)).tolist() == []
