"""Stands for a user's inference server: requests on the emulated GPU for two seconds."""

import os

socket = os.environ["GPREEMPT_EMULATED"]
load = "lc --kernel-us 1000 --kernels 1 --groups 1 --every-us 10000 --seconds 2"
os.execvp("gpreempt-load", ["gpreempt-load", *load.split(), "--socket", socket])
