"""Reads facts: the scheduler, the run's folder, its logs. Decides nothing and changes nothing."""
