"""Keeps distributed trainings alive on plain Slurm clusters.

The rooms and their walls are drawn in ``docs/architecture.md``.
"""

__version__ = "0.1.0"
