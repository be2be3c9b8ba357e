"""Stands for a user's training: kernels back to back on the emulated GPU for two seconds."""

import os

socket = os.environ["GPREEMPT_EMULATED"]
load = "be --kernel-us 2000 --groups 1 --seconds 2"
os.execvp("gpreempt-load", ["gpreempt-load", *load.split(), "--socket", socket])
