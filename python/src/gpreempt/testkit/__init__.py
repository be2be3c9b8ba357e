"""A test of preemption from end to end: online and offline models, three cases, a report.

    python -m gpreempt.testkit                     # an emulated GPU; nothing else is needed
    python -m gpreempt.testkit --backend cuda      # PyTorch models on this machine's GPU
    python -m gpreempt.testkit --duration 1h       # does it last?

Models are processes of their own. A GPreemptScheduler keeps the offline ones off the device while
online ones have work. Whatever is judged is a ratio of two numbers of the same run, because times
alone say more about the machine than about preemption.
"""

from __future__ import annotations

from .judge import Criterion, Rank
from .result import CaseResult, Phase, Result

__all__ = ["CaseResult", "Criterion", "Phase", "Rank", "Result"]
