"""The C interface: gpreempt.h in ctypes. A test compares it with the header."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

FOREVER = 2**64 - 1

ANY_DEVICE = 2**32 - 1

EVICT_TREE = 1

LAUNCH_NO_WAIT = 1

PRIORITY_OF_PROCESS = -1

QUEUE_ON = 1
QUEUE_ACTIVE = 2
QUEUE_SUSPENDED = 4
QUEUE_OWN_PRIORITY = 8
QUEUE_SUSPENDED_BY_US = 16


class QueueInfoStruct(ctypes.Structure):
    """gpreempt_queue_info"""

    _fields_ = [
        ("size", c_uint32),
        ("pid", c_uint32),
        ("id", c_uint64),
        ("native", c_uint64),
        ("start_ticks", c_uint64),
        ("pending", c_uint64),
        ("ran_us", c_uint64),
        ("preempts", c_uint64),
        ("uid", c_uint32),
        ("device", c_uint32),
        ("device_kind", c_uint32),
        ("priority", c_int32),
        ("level", c_int32),
        ("flags", c_uint32),
        ("name", c_char * 16),
        ("reserved", c_uint64 * 4),
    ]


class QueueOptionsStruct(ctypes.Structure):
    """gpreempt_queue_options"""

    _fields_ = [
        ("size", c_uint32),
        ("backend", c_int32),
        ("priority", c_int32),
        ("device", c_uint32),
        ("depth", c_uint32),
        ("memory_bytes", c_uint32),
        ("socket", c_char_p),
        ("reserved", c_uint64 * 4),
    ]


class LaunchStruct(ctypes.Structure):
    """gpreempt_launch"""

    _fields_ = [
        ("size", c_uint32),
        ("shared_bytes", c_uint32),
        ("kernel", c_size_t),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("arguments", POINTER(c_void_p)),
        ("argument_count", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32 * 6),
    ]


STRUCTURES = {
    "gpreempt_queue_info": QueueInfoStruct,
    "gpreempt_queue_options": QueueOptionsStruct,
    "gpreempt_launch": LaunchStruct,
}

_HINTS: dict[str, list[Any]] = {
    "gpreempt_hint_begin": [c_uint64],
    "gpreempt_hint_end": [],
}

_CODES: dict[str, list[Any]] = {
    **_HINTS,
    "gpreempt_connect": [c_char_p],
    "gpreempt_disconnect": [],
    "gpreempt_set_lease": [c_uint32],
    "gpreempt_get_all_queues": [POINTER(QueueInfoStruct), c_size_t, POINTER(c_size_t)],
    "gpreempt_get_queue": [c_uint64, POINTER(QueueInfoStruct)],
    "gpreempt_suspend_queues": [POINTER(c_uint64), c_size_t, c_uint32],
    "gpreempt_resume_queues": [POINTER(c_uint64), c_size_t],
    "gpreempt_preempt": [c_uint64, c_uint64],
    "gpreempt_preempt_async": [c_uint64],
    "gpreempt_interrupt": [c_uint64],
    "gpreempt_restore": [c_uint64],
    "gpreempt_deactivate": [c_uint64],
    "gpreempt_reactivate": [c_uint64],
    "gpreempt_level": [c_uint64, POINTER(c_int)],
    "gpreempt_set_priority": [c_uint32, c_int],
    "gpreempt_set_latency_budget": [c_uint32, c_int],
    "gpreempt_get_priority": [c_uint32, POINTER(c_int)],
    "gpreempt_set_queue_priority": [c_uint64, c_int],
    "gpreempt_detach": [c_uint32],
    "gpreempt_amd_update_queue": [c_uint32, c_uint64, c_uint32, c_int, c_int],
    "gpreempt_suspend_process": [c_uint32, c_uint32],
    "gpreempt_resume_process": [c_uint32],
    "gpreempt_evict": [c_uint32, c_uint32, c_uint32, c_uint64],
    "gpreempt_restore_process": [c_uint32, c_uint64],
    "gpreempt_make_room": [c_uint64, c_uint32, c_uint64],
    "gpreempt_set_evictable": [c_uint32, c_int],
    "gpreempt_queue_create_with": [POINTER(QueueOptionsStruct), POINTER(c_void_p)],
    "gpreempt_launch_kernel": [c_void_p, POINTER(LaunchStruct)],
    "gpreempt_queue_synchronize": [c_void_p, c_uint64],
    "gpreempt_queue_block": [c_void_p],
    "gpreempt_queue_unblock": [c_void_p],
    "gpreempt_queue_progress": [c_void_p, POINTER(c_uint64), POINTER(c_uint64)],
    "gpreempt_queue_id": [c_void_p, POINTER(c_uint64)],
    "gpreempt_queue_stream": [c_void_p, POINTER(c_void_p)],
    "gpreempt_queue_read": [c_void_p, c_uint32, c_void_p, c_size_t],
    "gpreempt_queue_destroy": [c_void_p],
}


def declare(library: ctypes.CDLL) -> None:
    """Says what each function takes and returns. AttributeError if one is not there."""
    for name, arguments in _CODES.items():
        _declare(library, name, arguments, c_int)
    _declare(library, "gpreempt_version", [], c_uint32)
    _declare(library, "gpreempt_strerror", [c_int], c_char_p)
    _declare(library, "gpreempt_last_message", [c_char_p, c_size_t], c_size_t)


def declare_hints(library: ctypes.PyDLL) -> None:
    """The same for hints alone."""
    for name, arguments in _HINTS.items():
        _declare(library, name, arguments, c_int)


def _declare(library: ctypes.CDLL, name: str, arguments: list[Any], result: Any) -> None:
    function = getattr(library, name)
    function.argtypes = arguments
    function.restype = result
