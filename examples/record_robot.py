"""Record a robot: two cameras and seven joints at 30 Hz, in episodes that an operator ends, and says of whether they were good.

    python examples/record_robot.py --store runs/robot --episodes 20
    python examples/record_robot.py --store runs/robot --export exports/robot

Kill it, or pull the plug, and run the same again: it goes on with the episodes that are missing. After a kill the episode that
ran is there up to its last step, after a power loss up to the flush before it. Nobody has said that it was good, so it is not
exported. The robot and its operator are simulated: replace `Robot` and `Operator` by yours.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.formats import export

HZ, JOINTS, CAMERA = 30, 7, (96, 128, 3)
TASKS = ("put the cube into the box", "open the drawer")
COLUMNS = {
    "obs/wrist": db.Column(CAMERA, "uint8"),
    "obs/top": db.Column(CAMERA, "uint8"),
    "obs/joints": db.Column((JOINTS,), "float32"),
    "action": db.Column((JOINTS,), "float32"),
}
Joints = npt.NDArray[np.float32]


class Robot:
    """An arm that follows its commands slowly, before two cameras."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._joints = rng.normal(size=JOINTS).astype(np.float32)

    def observe(self) -> dict[str, npt.NDArray[Any]]:
        """Return what its sensors say now."""
        pictures = np.zeros((2, *CAMERA), np.uint8)
        rows, columns = (np.tanh(self._joints[None, :2] + [[0], [self._joints[2]]]) * [45, 60] + [48, 64]).astype(int).T
        for picture, row, column in zip(pictures, rows, columns, strict=True):
            picture[row - 3 : row + 3, column - 3 : column + 3] = 255
        return {"wrist": pictures[0], "top": pictures[1], "joints": self._joints.copy()}

    def move(self, command: Joints) -> None:
        """Begin to move where the joints are to be."""
        self._joints += np.float32(0.05) * (command - self._joints)


class Operator:
    """Somebody who moves the arm to a place, ends the episode once it is there, or gives up, and says what it was."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.task = str(rng.choice(TASKS))
        self._place = rng.normal(size=JOINTS).astype(np.float32)
        self._patience = int(rng.integers(20, 60))

    def command(self) -> Joints:
        """Return where the joints are to be, by a hand that trembles."""
        return self._place + self._rng.normal(scale=0.05, size=JOINTS).astype(np.float32)

    def is_done(self, joints: Joints, steps: int) -> bool:
        """Return whether the button is pressed."""
        return steps == self._patience or self._is_there(joints)

    def judge(self, joints: Joints) -> dict[str, Any]:
        """Return what is to be known of the episode."""
        return {"instruction": self.task, "success": self._is_there(joints), "operator": "Ada"}

    def _is_there(self, joints: Joints) -> bool:
        return bool(np.abs(joints - self._place).max() < 0.3)


def record(buffer: db.ReplayBuffer, seconds: float, rng: np.random.Generator) -> int:
    """Record an episode, a step every so many seconds; return how many there are in it."""
    robot, operator, steps, done, late = Robot(rng), Operator(rng), 0, False, 0
    obs, tick = robot.observe(), time.monotonic()
    while not done:
        action = operator.command()
        robot.move(action)
        tick += seconds
        late += time.monotonic() > tick
        time.sleep(max(0.0, tick - time.monotonic()))
        following, steps = robot.observe(), steps + 1
        done = operator.is_done(following["joints"], steps)
        buffer.add(obs, action, 0.0, following, False, done)  # from here on a kill does not lose the step
        obs = following
    buffer.episodes[-1:].set_values(late=late / steps, **operator.judge(obs["joints"]))
    buffer.flush()  # from here on a power loss does not lose the episode
    return steps


def judged(buffer: db.ReplayBuffer) -> int:
    """Count the episodes of which the operator has said what they were."""
    instructions = buffer.episodes.values.get("instruction", np.empty(0, str))
    return int((instructions != "").sum())


def main() -> None:
    """Record what is missing, or export what is good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/robot"))
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--hz", type=float, default=HZ)
    parser.add_argument("--export", type=Path, help="a directory for a data set of LeRobot")
    args = parser.parse_args()
    if args.export is not None:
        good = "success and late < 0.1"  # of an episode that was cut off nothing was said
        print(export("lerobot", args.store, args.export, where=good, allow_loss=["final_obs"], progress=False))
        return
    with db.ReplayBuffer(args.store, columns=COLUMNS, metadata={"fps": HZ}) as buffer:  # without a capacity: nothing is evicted
        buffer.cut_off()  # the robot has moved since it was recorded last
        while (number := judged(buffer)) < args.episodes:
            steps = record(buffer, 1 / args.hz, np.random.default_rng(len(buffer)))
            print(f"episode {number}: {steps} steps, {buffer.episodes[-1].values}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
