"""What things cost: training steps, propagation passes and certification, measured side by side.

A figure is a ratio of medians from one run in which both sides alternate, with device events on a
GPU, after warm-up; `report.py` writes it down with hardware, versions and commit.
"""
