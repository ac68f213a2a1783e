"""Run the README's examples twice with the diskbuffer that is installed, in an empty directory: ``python -P tests/readme.py``."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    """Run them; the second run must go on with the steps of the first."""
    import diskbuffer as db

    assert "site-packages" in Path(db.__file__).parts, f"this is {db.__file__}, which was not installed"
    steps = []
    for _ in range(2):
        for code in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(code, "README.md", "exec"), {})
        with db.ReplayBuffer("runs/cartpole", mode="r") as buffer:
            steps.append(len(buffer))
            assert buffer.sample(4)["obs"].shape == (4, 4, 4)
    assert steps == [1_000, 2_000], steps


if __name__ == "__main__":
    main()
