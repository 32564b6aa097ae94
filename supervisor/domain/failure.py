"""Failure classes and the sets of them that rules speak about (design: failure classes and first moves)."""

from enum import StrEnum


class FailureClass(StrEnum):
    """Why an attempt ended or stalls. The values are stored in ledgers and never change meaning."""

    GPU_HARDWARE = "gpu_hardware"
    GPU_DRIVER = "gpu_driver"
    NODE_FAIL = "node_fail"
    NCCL_NETWORK = "nccl_network"
    NCCL_TIMEOUT_HANG = "nccl_timeout_hang"
    RENDEZVOUS = "rendezvous"
    SEGFAULT_NATIVE = "segfault_native"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    FILESYSTEM = "filesystem"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    NUMERICAL = "numerical"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    USER_CODE = "user_code"
    DATA = "data"
    DEPENDENCY_ENV = "dependency_env"
    SHM = "shm"
    LICENSE_AUTH = "license_auth"
    SCHEDULER = "scheduler"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


NODE_CLASSES = frozenset({FailureClass.GPU_HARDWARE, FailureClass.GPU_DRIVER, FailureClass.NODE_FAIL})
"""The node is at fault: get off it and retry."""

COMMUNICATION_CLASSES = frozenset(
    {
        FailureClass.NCCL_NETWORK,
        FailureClass.NCCL_TIMEOUT_HANG,
        FailureClass.RENDEZVOUS,
        FailureClass.SEGFAULT_NATIVE,
    }
)
"""Retry as it is; nobody is blamed for a single one."""

USER_CLASSES = frozenset(
    {
        FailureClass.USER_CODE,
        FailureClass.DATA,
        FailureClass.DEPENDENCY_ENV,
        FailureClass.SHM,
        FailureClass.LICENSE_AUTH,
    }
)
"""The same thing would happen on any node: stop and explain (promise P7)."""

ROLLBACK_CLASSES = frozenset({FailureClass.CHECKPOINT_CORRUPT, FailureClass.NUMERICAL})
"""Step back to the checkpoint before the one that was used."""

FREE_CLASSES = frozenset({FailureClass.PREEMPTED, FailureClass.TIME_LIMIT})
"""Nothing failed: the allocation ended. Free of budget where there was progress."""

MEMORY_CLASSES = frozenset({FailureClass.GPU_OOM, FailureClass.HOST_OOM})
