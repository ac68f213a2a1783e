"""Conditions on episodes, as users write them: ``return > 10 and ending == 'terminated'``. Parsed, never evaluated.

The grammar is a small part of Python's, so Python's own parser reads it. What it returns is translated node by node, and whatever
is not in the list below is an error.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import tokenize
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.named_values import Named
from diskbuffer.schema.endings import ENDINGS

Bools = npt.NDArray[np.bool_]
NUMBERS = ("episode", "stream", "start", "length", "return", "age", "ended")
TEXTS = ("ending", "tag")
TRUTHS = ("whole",)
_LONGEST, _DEEPEST = 2000, 50
_RETURN = "rETURN"  # stands for "return", which is a keyword of Python's, while its parser works
_CONSTANTS = {"nan": math.nan, "inf": math.inf}
KNOWN = (*NUMBERS, *TEXTS, *TRUTHS, "returns", "id", *_CONSTANTS, _RETURN)  # names that no value of episodes may have
_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class Table(Protocol):
    """Episodes that conditions choose among, by their columns."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Any:
        """Return a column, a value for each episode."""

    def given(self, name: str) -> Named:
        """Return the values of a name, exact, and which episodes were given one."""


@dataclass(frozen=True)
class Condition:
    """A condition on episodes.

    Attributes
    ----------
    text : str
        As it was written.
    """

    text: str
    _apply: Callable[[Table], Any]

    def select(self, table: Table) -> Bools:
        """Return which episodes it holds for, (n,) bool. Numbers that are NaN compare as in Python: only != holds."""
        return np.broadcast_to(np.asarray(self._apply(table), np.bool_), (len(table),)).copy()


@dataclass(frozen=True)
class _Value:
    """One side of a comparison: a column, a constant, or a list of constants."""

    kind: str  # of `SHOWN`
    of: Callable[[Table], Any]
    shown: str
    constant: Any = None
    column: str | None = None


def parse(text: str, values: Mapping[str, str] = MappingProxyType({})) -> Condition:
    """Read a condition.

    Names are the columns of `EpisodeTable`; ``nan``, ``inf``, ``None`` (no tag, no value; a return that is not a number),
    ``True`` and ``False``. Comparisons may be chained (``10 <= length < 20``). ``in`` takes a tuple or list
    (``stream in (0, 3)``), or a column of text (``'demo' in tag``).

    Parameters
    ----------
    text : str
    values : mapping of str to str
        The kinds of episodes' values, by name: "truth", "integer", "number" or "text".

    Raises
    ------
    InputError
        It is no such condition. The message says where, and what is known.
    """
    if len(text) > _LONGEST:
        raise InputError(f"a condition has {_LONGEST:,} characters at most, found {len(text):,}")
    reader = _Reader(text, values)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a backslash in a text
            tree = ast.parse(_without_keyword(text.strip()), mode="eval")
    except SyntaxError as error:
        raise reader.error(error.msg.split(". Perhaps")[0], (error.offset or 1) - 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise reader.error(f"it cannot be read ({error})", 0) from None
    try:
        return Condition(text, reader.condition(tree.body, 0))
    except RecursionError:
        raise reader.error("it is nested too deeply", 0) from None


def _without_keyword(text: str) -> str:
    """Replace the name "return", outside of strings, by one that Python's parser takes for a name."""
    if "\n" in text or "\r" in text:
        raise SyntaxError("a condition is one line", ("", 1, 1, text))
    characters = list(text)
    try:
        tokens = list(tokenize.generate_tokens(iter([text]).__next__))
    except tokenize.TokenError:  # the parser says better what is wrong
        return text.replace("return", _RETURN)
    for token in tokens:
        if token.type == tokenize.NAME and token.string == "return":
            characters[token.start[1] : token.end[1]] = _RETURN
        elif token.type == tokenize.COMMENT:
            raise SyntaxError("unexpected character '#'", ("", 1, token.start[1] + 1, text))
    return "".join(characters)


class _Reader:
    """Translate a syntax tree."""

    def __init__(self, text: str, values: Mapping[str, str]) -> None:
        self._text, self._values = text.strip(), values
        self._kinds = dict.fromkeys(NUMBERS, "number") | dict.fromkeys(TEXTS, "text") | dict.fromkeys(TRUTHS, "truth")
        self._kinds |= {name: "number" if kind == "integer" else kind for name, kind in values.items()}

    def error(self, what: str, at: int) -> InputError:
        """Return an error that shows where it is."""
        shown = self._text if self._text.isprintable() else repr(self._text)
        return InputError(f"in the condition\n    {shown}\n    {' ' * at}^\n{what.replace(_RETURN, 'return')}. {self._help}")

    @property
    def _help(self) -> str:
        return (
            f"Compare {', '.join(self._kinds)} by <, <=, ==, !=, >=, >, in and not in; join with and, or, not and "
            "parentheses. For example: return > 10 and ending == 'terminated'"
        )

    def _wrong(self, node: ast.expr, what: str) -> InputError:
        at = len(self._text.encode()[: node.col_offset].decode(errors="ignore"))  # the parser counts bytes
        return self.error(what, at)

    # What is true or false

    def condition(self, node: ast.expr, depth: int) -> Callable[[Table], Any]:
        """Return what applies a condition to a table."""
        if depth > _DEEPEST:
            raise self._wrong(node, f"it is nested in more than {_DEEPEST} levels")
        if isinstance(node, ast.BoolOp):
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            parts = [self.condition(value, depth + 1) for value in node.values]

            def joined(table: Table) -> Any:
                mask = parts[0](table)
                for part in parts[1:]:
                    mask = join(mask, part(table))
                return mask

            return joined
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.condition(node.operand, depth + 1)
            return lambda table: np.logical_not(inner(table))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        value = self._value(node)
        if value.kind == "truth":
            return value.of
        raise self._wrong(node, f"{value.shown} alone is neither true nor false; compare it with something")

    def _comparison(self, node: ast.Compare) -> Callable[[Table], Any]:
        sides = [self._value(side) for side in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides, sides[1:], node.comparators, strict=False)
        parts = [self._compared(op, left, right, at) for op, left, right, at in pairs]

        def chained(table: Table) -> Any:
            mask = parts[0](table)
            for part in parts[1:]:
                mask = np.logical_and(mask, part(table))
            return mask

        return chained

    def _compared(self, op: ast.cmpop, left: _Value, right: _Value, at: ast.expr) -> Callable[[Table], Any]:
        if isinstance(op, ast.In | ast.NotIn):
            inside = self._inside(left, right, at)
            return inside if isinstance(op, ast.In) else lambda table: np.logical_not(inside(table))
        if isinstance(op, ast.Is | ast.IsNot):
            if right.kind != "none":
                raise self._wrong(at, "'is' is for None only; use ==")
            op = ast.Eq() if isinstance(op, ast.Is) else ast.NotEq()
        if "none" in (left.kind, right.kind):
            return self._missing(op, left, right, at)
        if left.kind != right.kind or left.kind == "list":
            raise self._wrong(at, f"{left.shown} is {SHOWN[left.kind]} and {right.shown} is {SHOWN[right.kind]}")
        if left.kind != "number" and not isinstance(op, ast.Eq | ast.NotEq):
            raise self._wrong(at, f"{_SIGNS[type(op)]} is for numbers; {left.shown} is {SHOWN[left.kind]}")
        self._check_endings((left, right), at)
        compare = _ORDERS[type(op)]
        if left.kind == "text":
            return _texts_compared(operator.eq if isinstance(op, ast.Eq) else operator.ne, compare, left, right)
        numbers = [str(side.column) for side in (left, right) if side.kind == "number" and side.column in self._values]

        def compared(table: Table) -> Any:
            mask = compare(left.of(table), right.of(table))
            for name in numbers:  # one that was not given compares as NaN does
                mask = np.where(table.given(name).given, mask, isinstance(op, ast.NotEq))
            return mask

        return compared

    def _missing(self, op: ast.cmpop, left: _Value, right: _Value, at: ast.expr) -> Callable[[Table], Any]:
        """Compare with None: no tag, a value that was not given, or a return that is not a number."""
        value = right if left.kind == "none" else left
        same = isinstance(op, ast.Eq)
        if isinstance(op, ast.Eq | ast.NotEq) and value.column is not None and value.column in self._values:
            name = value.column
            return lambda table: np.not_equal(table.given(name).given, same)
        if not isinstance(op, ast.Eq | ast.NotEq) or value.kind not in ("number", "text"):
            raise self._wrong(at, "None can be compared by == and != only, with a number or a text")
        if value.kind == "text":
            return lambda table: np.equal(np.equal(value.of(table), ""), same)
        return lambda table: np.equal(np.isnan(value.of(table)), same)

    def _inside(self, left: _Value, right: _Value, at: ast.expr) -> Callable[[Table], Any]:
        if right.kind == "text" and left.kind == "text":
            return _texts_compared(lambda part, text: part in text, _found, left, right)
        if right.kind != "list":
            raise self._wrong(at, f"'in' needs a list, such as (0, 1), or a text; {right.shown} is {SHOWN[right.kind]}")
        parts = [self._compared(ast.Eq(), left, one, at) for one in right.constant]

        def inside(table: Table) -> Any:
            mask: Any = np.zeros(len(table), np.bool_)
            for part in parts:
                mask = np.logical_or(mask, part(table))
            return mask

        return inside

    def _check_endings(self, sides: tuple[_Value, _Value], at: ast.expr) -> None:
        """Refuse an ending that there is none of: the condition would hold for nothing, and nobody be told why."""
        for one, other in (sides, sides[::-1]):
            if one.column == "ending" and isinstance(other.constant, str) and other.constant not in ENDINGS:
                raise self._wrong(at, f"no episode ends as {other.constant!r}; endings are {', '.join(map(repr, ENDINGS))}")

    # What is compared

    def _value(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Constant):
            return self._constant(node, node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = self._value(node.operand)
            if inner.kind == "number" and inner.constant is not None:
                return self._constant(node, -inner.constant if isinstance(node.op, ast.USub) else inner.constant)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [self._value(part) for part in node.elts]
            if all(part.column is None and part.kind != "list" for part in parts):
                return _Value("list", lambda _: None, "a list", parts)
        what = ast.get_source_segment(self._text, node) or type(node).__name__
        raise self._wrong(node, f"{what!r} is not known here: no arithmetic, no calls, and a list has constants only")

    def _constant(self, node: ast.expr, value: Any) -> _Value:
        kinds = {bool: "truth", int: "number", float: "number", str: "text", type(None): "none"}
        kind = kinds.get(type(value))
        if kind is None:
            raise self._wrong(node, f"{value!r} is neither a number, a text, True, False nor None")
        if kind == "number" and isinstance(value, int) and abs(value) >= 2**63:
            value = float(value) if abs(value) < 2**1000 else math.inf if value > 0 else -math.inf
        return _Value(kind, lambda _: value, repr(value), value)

    def _name(self, node: ast.Name) -> _Value:
        name = "return" if node.id == _RETURN else node.id
        if name in _CONSTANTS:
            return self._constant(node, _CONSTANTS[name])
        if name not in self._kinds:
            near = difflib.get_close_matches(name, [*self._kinds, *_CONSTANTS], 1)
            meant = f"the text {name!r}, in quotes" if name in ENDINGS else f"{near[0]!r}" if near else ""
            advice = f"did you mean {meant}?" if meant else "no episode was given a value of that name"
            raise self._wrong(node, f"{name!r} is not known ({advice})")
        if name in self._values:
            if self._kinds[name] == "text":
                return _Value("text", lambda table: table.given(name), name, column=name)
            return _Value(self._kinds[name], lambda table: table.given(name).values, name, column=name)
        return _Value(self._kinds[name], lambda table: table.column(name), name, column=name)


def _texts_compared(
    one: Callable[[str, str], bool], arrays: Callable[[Any, Any], Any], left: _Value, right: _Value
) -> Callable[[Table], Any]:
    """Return what compares texts: a value that episodes were given with a constant by `one`, once for each that there is."""

    def compared(table: Table) -> Any:
        a, b = left.of(table), right.of(table)
        if isinstance(a, Named) and isinstance(b, str):
            return np.array([one(text, b) for text in a.texts.all])[a.values]
        if isinstance(b, Named) and isinstance(a, str):
            return np.array([one(a, text) for text in b.texts.all])[b.values]
        return arrays(*(side.shown if isinstance(side, Named) else np.asarray(side) for side in (a, b)))

    return compared


def _found(part: Any, text: Any) -> Any:
    return np.strings.find(text, part) >= 0


SHOWN = {"text": "a text", "truth": "true or false", "none": "None", "list": "a list"}
SHOWN |= dict.fromkeys(("number", "integer"), "a number")
