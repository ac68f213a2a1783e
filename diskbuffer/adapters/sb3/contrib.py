"""Rollout buffers for sb3-contrib: of MaskablePPO, with masks of actions, and of RecurrentPPO, with its networks' states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer

from diskbuffer.adapters.sb3.rollout import DiskDictRolloutBuffer, DiskRolloutBuffer

try:
    from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
    from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
except ImportError as error:
    raise ImportError("these buffers are for MaskablePPO and RecurrentPPO: pip install sb3-contrib") from error

Array = npt.NDArray[Any]
if TYPE_CHECKING:
    from diskbuffer.adapters.sb3.rollout import DiskRolloutBuffer as _Disk
else:
    _Disk = object  # ours comes behind sb3-contrib's classes, which call its methods


class _Read:
    """Observations of one minibatch, in the place of the array that its indices are of."""

    def __init__(self, values: Any) -> None:
        self._values = values.numpy()

    def __getitem__(self, _: Any) -> Any:
        return self._values


class _Minibatches(_Disk):
    """Rollouts whose minibatches sb3-contrib's own code puts together, with observations that were read from the disk."""

    get = DiskRolloutBuffer.get

    def __init__(self, buffer_size: int, observation_space: spaces.Space[Any], *args: Any, **kwargs: Any) -> None:
        assert isinstance(observation_space, spaces.Dict) == isinstance(self, DictRolloutBuffer), (
            f"{type(self).__name__} is for {'dict' if isinstance(self, DictRolloutBuffer) else 'other than dict'} observations"
        )
        DiskRolloutBuffer.__init__(self, buffer_size, observation_space, *args, **kwargs)

    def _minibatch(self, obs: Any, indices: Array) -> Any:
        self.observations = {name: _Read(part) for name, part in obs.items()} if isinstance(obs, dict) else _Read(obs)
        try:
            return self._get_samples(indices, *self._changes())
        finally:
            del self.observations  # which is on disk for all others

    def _changes(self) -> tuple[Any, ...]:
        """Return where the environment is another than that of the step before, if `_get_samples` asks."""
        return ()


class _Maskable(_Minibatches):
    """Masks of actions are numbers that stay in memory: 4 bytes each."""

    _flattened = (*DiskRolloutBuffer._flattened, "action_masks")


class _Recurrent(_Minibatches):
    """States of the networks stay in memory: 4 bytes a number; steps keep their order, for sequences of them."""

    _states = ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf")
    _flattened = (*DiskRolloutBuffer._flattened, *_states, "episode_starts")

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        hidden_state_shape: tuple[int, int, int, int],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.hidden_state_shape = hidden_state_shape
        self.seq_start_indices, self.seq_end_indices = None, None
        super().__init__(buffer_size, observation_space, action_space, *args, **kwargs)

    @classmethod
    def in_place_of(cls, buffer: Any, **options: Any) -> Self:
        """Return a buffer of the same spaces and sizes as one that RecurrentPPO has made, which takes no class of buffers.

        Parameters
        ----------
        buffer : RecurrentRolloutBuffer or RecurrentDictRolloutBuffer
            ``model.rollout_buffer``.
        **options
            `path`, and others of `DiskRolloutBuffer`.
        """
        return cls(
            buffer.buffer_size,
            buffer.observation_space,
            buffer.action_space,
            buffer.hidden_state_shape,
            buffer.device,
            gae_lambda=buffer.gae_lambda,
            gamma=buffer.gamma,
            n_envs=buffer.n_envs,
            **options,
        )

    def _order(self, total: int) -> Array:
        """Draw where the steps, which keep their order, begin."""
        return np.roll(np.arange(total), -np.random.randint(total))  # noqa: NPY002  as it does

    def _flatten(self) -> None:
        for name in self._states:
            setattr(self, name, getattr(self, name).swapaxes(1, 2))
        super()._flatten()

    def _changes(self) -> tuple[Any, ...]:
        return ((np.arange(self.buffer_size * self.n_envs) % self.buffer_size == 0)[:, None],)


class DiskMaskableRolloutBuffer(_Maskable, MaskableRolloutBuffer, DiskRolloutBuffer):
    """sb3-contrib's `MaskableRolloutBuffer`, its observations in a store on disk; see `DiskRolloutBuffer`.

    Examples
    --------
    >>> model = MaskablePPO("MlpPolicy", env, rollout_buffer_class=DiskMaskableRolloutBuffer,
    ...                     rollout_buffer_kwargs={"path": "runs/rollout"})  # doctest: +SKIP
    """


class DiskMaskableDictRolloutBuffer(_Maskable, MaskableDictRolloutBuffer, DiskDictRolloutBuffer):
    """sb3-contrib's `MaskableDictRolloutBuffer`, its observations in a store on disk; see `DiskRolloutBuffer`."""


class DiskRecurrentRolloutBuffer(_Recurrent, RecurrentRolloutBuffer, DiskRolloutBuffer):  # type: ignore[misc]
    """sb3-contrib's `RecurrentRolloutBuffer`, its observations in a store on disk; see `DiskRolloutBuffer`.

    Parameters
    ----------
    hidden_state_shape : (int, int, int, int)
        As sb3-contrib has it: steps, layers, environments, and numbers.

    Examples
    --------
    >>> model = RecurrentPPO("MlpLstmPolicy", env)  # doctest: +SKIP
    >>> model.rollout_buffer = DiskRecurrentRolloutBuffer.in_place_of(model.rollout_buffer, path="runs/rollout")  # doctest: +SKIP
    """


class DiskRecurrentDictRolloutBuffer(_Recurrent, RecurrentDictRolloutBuffer, DiskDictRolloutBuffer):  # type: ignore[misc]
    """sb3-contrib's `RecurrentDictRolloutBuffer`, its observations in a store on disk; see `DiskRecurrentRolloutBuffer`."""
