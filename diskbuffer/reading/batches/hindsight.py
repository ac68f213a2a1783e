"""Steps whose goals are replaced by ones that were reached, and rewarded for those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.reading.batches.base import Request, Windows, views
from diskbuffer.reading.batches.transitions import StepArrays
from diskbuffer.reading.gather.targets import Columns, Memory
from diskbuffer.samplers import draws
from diskbuffer.samplers.draws import Draw

if TYPE_CHECKING:
    from diskbuffer.reading.gather.block import Block

ACHIEVED, DESIRED = "obs/achieved_goal", "obs/desired_goal"


class RelabelledArrays(StepArrays):
    """Arrays for single steps, and for the goals that take the place of theirs."""

    def __init__(self, request: Request, pinned: bool = False) -> None:
        columns = request.columns.all
        for path in (ACHIEVED, DESIRED):
            if path not in columns.paths or columns.schema[path] != columns.schema[ACHIEVED]:
                raise InputError(
                    f"goals are relabelled in dict observations with achieved_goal and desired_goal of the same shape and dtype; "
                    f"this store has {', '.join(map(repr, columns.schema.obs))}"
                )
        if "reward" not in columns.paths or columns.schema["reward"].shape != ():
            raise InputError("goals are relabelled where the reward is one number; this store's is not")
        super().__init__(request, pinned)

    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Allocate steps, and a goal for each."""
        self._reward, self._form = self.request.form.reward, draws.Steps()
        super().allocate(columns.select(tuple(dict.fromkeys((*columns.paths, ACHIEVED, DESIRED)))), block)
        self._names = list(columns.paths)
        del self._delivered[len(self._names) :]
        self.memories.append(Memory(columns.select((ACHIEVED,)), [(0, 1, True)], self._size))

    @staticmethod
    def windows(request: Request, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""
        goals = drawn._replace(positions=drawn.notes["_goals"])
        return [*StepArrays.windows(request._replace(form=draws.Steps()), drawn), Windows(goals, 0, 1)]

    def finish(self, drawn: Draw) -> None:
        """Put the goals in, and ask for the rewards."""
        which, steps = drawn.notes["relabelled"], dict(self.memories[0].items())
        goals = self.memories[1].arrays[0]
        steps[DESIRED][which] = goals[which][:, None]
        if "reward" not in steps:
            return
        rewards = self._rewards()
        stored = rewards.astype(steps["reward"].dtype)
        if steps["reward"].dtype.kind not in "f" and (stored != rewards).any():
            raise InputError(f"the reward function's values do not fit the column reward, {steps['reward'].dtype}")
        steps["reward"][which] = stored[which]

    def _rewards(self) -> npt.NDArray[Any]:
        steps = self.memories[0]
        reward = np.asarray(self._reward(views(self.name(steps.paths, steps.arrays))))
        if reward.shape != (self._size,) or reward.dtype.kind not in "biuf":
            raise InputError(
                f"the reward function must return a number for each step of the batch, shape ({self._size},), found "
                f"{reward.dtype} of shape {reward.shape}"
            )
        if not np.isfinite(reward).all():
            raise InputError("the reward function must return finite numbers, found NaN or infinity")
        return reward
