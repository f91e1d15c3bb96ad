"""Measurements: ratios within one run, against the best hand-written alternative and against the limit."""
