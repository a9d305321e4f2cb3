"""A place on the device where a kernel leaves the first bad element, to be read later.

A check that raises must bring its answer to the host, and so waits for everything queued before it.
A flag does not: kernels lower it with an atomic minimum, and it is read at the next point where the
host waits anyway. What a kernel does with a bad element meanwhile is harmless by its own contract.

Worked example: ids [8, 9, -3, 99] with bounds [8, 16) are bad at 2 and 3; ``read()`` gives 2.
"""

import torch
from torch import Tensor

_CLEAR = 2**63 - 1


class CheckFlag:
    """The index of the first bad element that any op given this flag met, or none.

    ``value`` is int64 ``(1,)`` on ``device``; 2**63 - 1 means clear. Not for two streams at once.
    """

    def __init__(self, device: torch.device | str) -> None:
        with torch.inference_mode(False):  # to be lowered and cleared outside of it as well
            self.value: Tensor = torch.full((1,), _CLEAR, dtype=torch.int64, device=device)

    def read(self) -> int | None:
        """The lowest index that was bad, None if none was. Waits for the device."""
        found = int(self.value.item())
        return None if found == _CLEAR else found

    def clear(self) -> None:
        """Forget what was found. Does not wait."""
        self.value.fill_(_CLEAR)

    def lower(self, bad: Tensor) -> None:
        """Take note of the elements where ``bad``, bool ``(n,)``, holds. Does not wait."""
        if bad.numel():
            at = torch.arange(len(bad), device=bad.device)
            first = torch.where(bad, at, _CLEAR).amin().reshape(1)
            torch.minimum(self.value, first, out=self.value)
