"""What models do: how long their kernels are, and how often requests come."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Online:
    """Requests at fixed times, whether or not the previous one is done."""

    kernels: int
    """Kernels in a request, one after the other."""
    kernel_us: int
    every_us: int
    """A request every so often."""

    @property
    def request_us(self) -> int:
        """What a request needs when it has the device for itself."""
        return self.kernels * self.kernel_us

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Offline:
    """Kernels back to back."""

    kernel_us: int
    depth: int = 4
    """Kernels in flight."""
    count: int = 0
    """It ends after so many; 0: it does not end."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


TRAINING = Offline(kernel_us=8_000)
"""Long kernels: a request that waits for the end of one waits long."""

BASIC = Online(kernels=10, kernel_us=2_000, every_us=250_000)
"""An inference of 20 ms now and then, as in the documents."""

FREQUENT = Online(kernels=2, kernel_us=2_000, every_us=50_000)
"""A short inference twenty times a second: the offline model hardly gets going."""
