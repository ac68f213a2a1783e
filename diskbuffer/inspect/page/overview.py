"""The store as a whole, for the page: what `diskbuffer info` tells, as a few large figures, columns, and words."""

from __future__ import annotations

from typing import Any

from diskbuffer.inspect.page.plain_values import scalar
from diskbuffer.inspect.summary import NEWEST, summary
from diskbuffer.plugin import RUNNING, Reader, human_size


def overview(reader: Reader) -> dict[str, Any]:
    """Return figures on a store; costs what `summary` does."""
    found = summary(reader)
    episodes, disk = found["episodes"], found["disk"]
    returns, lengths = episodes["returns"], episodes["lengths"]
    over = episodes["count"] - episodes["endings"].get(RUNNING, 0)
    figures = {name: found[name] for name in ("steps", "capacity", "environments")}
    figures |= {"episodes": episodes["count"], "disk_bytes": disk["total"], "raw_bytes": disk["raw"], "ratio": disk["ratio"]}
    figures |= {"disk": human_size(disk["total"]), "raw": human_size(disk["raw"])}
    figures |= {
        "recent_episodes": min(over, NEWEST),
        "recent_return": scalar(returns["newest"]) if returns else None,
        "recent_length": scalar(lengths["newest"]) if lengths else None,
    }
    columns = sorted(found["columns"], key=lambda column: -column["disk_bytes"])
    others = [{"name": name, "disk_bytes": disk[part]} for name, part in _OTHERS.items() if disk[part]]
    worded = [part | {"disk": human_size(part["disk_bytes"])} for part in columns + others]
    return {"summary": figures, "columns": worded, "facts": _facts(found)}


_OTHERS = {"newest rows, not packed yet": "tail", "segment table": "table", "marks": "marks"}  # what is no column's


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    writer, environment = found["writer"], found["environment"] or {}
    who = "nobody"
    if writer is not None:
        who = f"process {writer.get('pid') or '?'}"
        who += f" on {writer['host']}" if writer.get("host") else ""
        who += f", since {writer['since']}" if writer.get("since") else ""
    stack = f"{found['frame_stack']}, filled up with {'zeros' if found['padding'] == 'zeros' else 'the first frame'}"
    endings = [f"{count:,} {ending}" for ending, count in found["episodes"]["endings"].items()]
    segments = found["segments"]
    facts = [
        ("Written by", who),
        ("Last shutdown", "" if writer is not None else found["left"]),
        ("Damage", found["damage"] or ""),
        ("Environment", str(environment.get("id") or "")),
        ("Environments", f"{found['environments']:,}"),
        ("Frame stack", stack if found["frame_stack"] > 1 else ""),
        ("Capacity", "none: all steps are kept" if found["capacity"] is None else f"{found['capacity']:,} steps"),
        ("Ever added", f"{found['added']:,} steps"),
        ("Endings", ", ".join(endings)),
        ("Segments", f"{segments['used']:,} of {segments['rows']:,} rows, {segments['sealed']:,} of them sealed"),
        ("Tags", ", ".join(f"{tag} ({count:,})" for tag, count in found["tags"].items())),
        ("Marks", ", ".join(found["marks"])),
        ("Metadata", ", ".join(f"{key}: {value}" for key, value in (found["metadata"] or {}).items())[:300]),
        ("Format", str(found["format"])),
    ]
    return [(name, value) for name, value in facts if value]
