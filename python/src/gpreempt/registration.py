"""Who is online and who is offline."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal, Optional, TypeVar

from ._call import process, queue_id
from .errors import NoSuchProcess, WrongState
from .queue_info import QueueInfo, queue, queues

Role = Literal["online", "offline"]

_Key = TypeVar("_Key")


class Registrations:
    """Processes and queues with their roles. A queue's own comes before that of its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[tuple[int, int], Role] = {}
        self._queues: dict[int, Role] = {}

    def add(self, role: Role, pid: Optional[int], id: Optional[int]) -> None:
        """Gives a process or a queue a role."""
        if pid is not None and id is None:
            key = (process(pid), start_ticks(pid))
            with self._lock:
                _enter(self._processes, key, role, f"process {pid}")
        elif id is not None and pid is None:
            queue(queue_id(id))
            with self._lock:
                _enter(self._queues, id, role, f"queue {id}")
        else:
            raise TypeError("say pid or queue")

    def remove(self, pid: Optional[int], id: Optional[int]) -> None:
        """Takes a role away."""
        if (pid is None) == (id is None):
            raise TypeError("say pid or queue")
        with self._lock:
            if id is not None:
                found = self._queues.pop(id, None) is not None
            else:
                keys = [key for key in self._processes if key[0] == pid]
                found = bool([self._processes.pop(key) for key in keys])
        if not found:
            raise WrongState(f"neither online nor offline: {f'queue {id}' if id else pid}")

    def role_of(self, queue: QueueInfo) -> Optional[Role]:
        """The role of a queue."""
        with self._lock:
            own = self._queues.get(queue.id)
            return own or self._processes.get((queue.pid, queue.start_ticks))


def start_ticks(pid: int) -> int:
    """When a process started: the number alone may soon be another's."""
    for known in queues(pid=pid):
        return known.start_ticks
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError as error:
        raise NoSuchProcess(f"there is no process {pid}; look it up again") from error
    # The name is in parentheses and may contain anything; this is the 22nd field, the 20th after.
    return int(status.rpartition(")")[2].split()[19])


def _enter(roles: dict[_Key, Role], key: _Key, role: Role, name: str) -> None:
    if roles.get(key, role) != role:
        raise WrongState(f"{name} is {roles[key]} already; remove it first")
    roles[key] = role
