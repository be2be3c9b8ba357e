"""What a model process submits: kernels in order, and a proof that each ran exactly once."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod

from ..errors import Busy, TimedOut
from ..submit import Backend, Queue
from .shape import Offline, Online

_FACTOR, _SUMMAND, _MODULUS = 1_664_525, 1_013_904_223, 2**32
_LOOK_US = 50_000
"""The longest wait without a check for a signal to stop."""


def mixed(word: int, number: int) -> int:
    """What a word is after one more launch: it depends on each of them, and on their order."""
    return (word * _FACTOR + number + _SUMMAND) % _MODULUS


class Work(ABC):
    """The work of one model on one device."""

    def __init__(self) -> None:
        self.submitted = 0
        self._word = 0

    @property
    @abstractmethod
    def device(self) -> str:
        """The device's name."""

    def submit(self) -> bool:
        """Submits the next kernel. False: too many are in flight still; look around, try again."""
        if not self._submit(self.submitted % _MODULUS):
            return False
        self._word = mixed(self._word, self.submitted % _MODULUS)
        self.submitted += 1
        return True

    @abstractmethod
    def wait(self) -> bool:
        """Waits a moment until everything is complete. False: it is not yet."""

    @abstractmethod
    def completed(self) -> int:
        """Kernels that are complete."""

    def is_exact(self) -> bool:
        """Whether the device's memory is what it must be after exactly these kernels."""
        return self._words() == {self._word}

    @abstractmethod
    def close(self) -> None:
        """Ends it."""

    @abstractmethod
    def _submit(self, number: int) -> bool: ...

    @abstractmethod
    def _words(self) -> set[int]: ...


class EmulatedWork(Work):
    """Kernels in a queue of this process on the emulated GPU."""

    _MIX = 1
    """The kernel that mixes its number into every word."""
    _GROUPS = 4
    """As many as the scene's device has room for."""
    _BYTES = _GROUPS * 32

    def __init__(self, priority: int, shape: Online | Offline) -> None:
        super().__init__()
        self._kernel_ns = shape.kernel_us * 1_000
        # A request's kernels are in flight together: there is nothing to wait for in between.
        depth = shape.depth if isinstance(shape, Offline) else shape.kernels
        self._queue = Queue(priority, backend=Backend.EMULATED, depth=depth)

    @property
    def device(self) -> str:
        return "emulated GPU"

    def wait(self) -> bool:
        try:
            self._queue.synchronize(timeout_us=_LOOK_US)
        except TimedOut:
            return False
        return True

    def completed(self) -> int:
        return self._queue.completed

    def close(self) -> None:
        self._queue.close()

    def _submit(self, number: int) -> bool:
        arguments = [0, number, self._kernel_ns, self._BYTES]
        try:
            self._queue.launch(
                self._MIX, grid=self._GROUPS, arguments=arguments, timeout_us=_LOOK_US
            )
        except Busy:
            return False
        return True

    def _words(self) -> set[int]:
        return set(struct.unpack(f"<{self._BYTES // 4}I", self._queue.read(0, self._BYTES)))
