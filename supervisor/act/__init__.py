"""Carries out one action once: intent first, then the side effect, then what Slurm shows of it."""
