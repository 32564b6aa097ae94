"""A throw-away, real Slurm cluster on one machine, in one folder, without root.

A private munged, slurmctld, one slurmd for each node (all on loopback, on free ports) and, where asked for,
slurmdbd with a private MariaDB. Nothing of the host is touched, and nothing runs on after ``Lab.down``.
Node faults are real: processes are killed, stopped and brought back.
"""

from supervisor.lab.cluster import Lab, default_directory
from supervisor.lab.spec import LabSpec, PartitionSpec
from supervisor.lab.status import DaemonFact, LabStatus, Vital

__all__ = ["DaemonFact", "Lab", "LabSpec", "LabStatus", "PartitionSpec", "Vital", "default_directory"]
