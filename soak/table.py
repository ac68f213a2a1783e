"""Rows of the table that all campaigns make together, and how cases become one."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from soak.workers import Answer, Job, Pool, scratch

SHOWN = 20  # broken cases that are told in full


@dataclass
class Row:
    """What was tried, how often, how often the promise was broken, and how to see it again."""

    what: str
    done: int
    broken: int
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.what}: {self.done:,} done, {self.broken:,} broken", *self.notes])


def _settled(answer: Answer) -> Answer:
    """Return an answer that has a class, also where a worker died or hung."""
    if "died" in answer:
        return {"class": "crash", "error": answer["died"]}
    return {"class": "hang", "error": f"{answer['hung']} s"} if "hung" in answer else answer


def tally(
    title: str, answers: Iterable[tuple[Job, Answer]], fine: Mapping[str, str], broken: Mapping[str, str]
) -> tuple[Row, list[tuple[Job, Answer]]]:
    """Count the classes of answers, and tell of broken ones, one of each kind of error first; return all of them, too."""
    cases = [(job, _settled(answer)) for job, answer in answers]
    classes = collections.Counter(answer["class"] for _, answer in cases)
    row = Row(title, len(cases), sum(classes[name] for name in broken))
    row.notes += [f"{classes[name]:,} {meaning}" for name, meaning in {**fine, **broken}.items() if classes[name]]
    kinds: dict[str, list[tuple[Job, Answer]]] = {}
    for job, answer in cases:
        if answer["class"] in broken:
            kinds.setdefault(f"{answer['class']}: {_kind_of(str(answer['error']))}", []).append((job, answer))
    for name, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        job, answer = found[0]
        done = f", {str(answer['done'])[:300]}" if "done" in answer else ""
        row.notes.append(f"{len(found)} times {name[:250]}; such as {job}{done}: {str(answer['error'])[:300]}")
    return row, cases


def _kind_of(error: str) -> str:
    """Leave out what differs from case to case."""
    return error.split("(")[-1].rstrip(")") + " " + error.split(":")[0] if "(" in error else error.split(" ")[0][:60]


def seeded(title: str, module: str, runs: Iterable[tuple[object, ...]], timeout: float, seconds: float | None = None) -> Row:
    """Call ``run`` of a module with each of `runs`, in two workers; it returns what went wrong, or nothing."""
    with scratch() as name, Pool(module, name, 2, timeout) as pool:
        return counted(title, pool.do_all(({"run": list(arguments)} for arguments in runs), seconds))


def counted(title: str, cases: Iterable[tuple[Job, Answer]]) -> Row:
    """Count cases that have gone wrong, and add up their figures."""
    row, of, broken = Row(title, 0, 0), collections.Counter[str](), list[str]()
    for job, answer in cases:
        row.done += 1
        of.update(answer.get("counts", {}))
        if wrong := answer.get("wrong", answer):
            broken.append(f"{job}: {wrong}")
    row.broken = len(broken)
    row.notes = [", ".join(f"{n:,} {what}" for what, n in sorted(of.items()))] * bool(of) + broken[:SHOWN]
    return row
