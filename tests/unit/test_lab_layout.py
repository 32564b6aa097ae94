from pathlib import Path

import pytest

from supervisor.errors import LabError
from supervisor.lab.layout import (
    Layout,
    Ports,
    check_root,
    fits_sockets,
    render_cgroup_conf,
    render_gres_conf,
    render_slurm_conf,
    render_slurmdbd_conf,
)
from supervisor.lab.spec import LabSpec, PartitionSpec

_LAYOUT = Layout(root=Path("/lab"), short=Path("/lab"))
_PORTS = Ports(controller=20001, database=20002, nodes=(20003, 20004))


def _conf(spec: LabSpec, version: tuple[int, int] = (22, 5)) -> list[str]:
    text = render_slurm_conf(_LAYOUT, spec, _PORTS, user="games", host="box", version=version)
    return text.splitlines()


def test_every_node_has_its_own_port_on_loopback() -> None:
    lines = _conf(LabSpec(nodes=2, gpus_per_node=8, memory_mb=1234))
    assert (
        "NodeName=node002 NodeHostname=box NodeAddr=127.0.0.1 Port=20004 CPUs=4 RealMemory=1234 "
        "Gres=gpu:8 State=UNKNOWN"
    ) in lines
    assert "GresTypes=gpu" in lines
    assert "SlurmctldHost=box(127.0.0.1)" in lines


def test_the_account_that_runs_the_lab_is_both_slurm_users() -> None:
    lines = _conf(LabSpec(nodes=2))
    assert "SlurmUser=games" in lines
    assert "SlurmdUser=games" in lines
    assert "AuthInfo=socket=/lab/sock/munge.sock,cred_expire=5" in lines


def test_an_extra_line_replaces_the_labs_own_value_whatever_its_case() -> None:
    lines = _conf(LabSpec(nodes=2, extra_conf=("killwait=60", "JobSubmitPlugins=lua")))
    assert "KillWait=60" in lines
    assert "KillWait=5" not in lines
    assert "JobSubmitPlugins=lua" in lines


def test_an_extra_partition_line_is_added_and_replaces_nothing() -> None:
    lines = _conf(LabSpec(nodes=2, extra_conf=("PartitionName=tiny Nodes=node001",)))
    assert lines[-1] == "PartitionName=tiny Nodes=node001"
    assert any(line.startswith("PartitionName=main ") for line in lines)


def test_the_first_partition_is_the_default_one() -> None:
    gpu = PartitionSpec(name="gpu", nodes="node[001-002]", max_time="1-00:00:00", max_nodes=2)
    lines = _conf(LabSpec(nodes=2, partitions=(gpu, PartitionSpec(name="debug"))))
    assert "PartitionName=gpu Nodes=node[001-002] Default=YES State=UP MaxTime=1-00:00:00 MaxNodes=2" in lines
    assert "PartitionName=debug Nodes=ALL Default=NO State=UP MaxTime=UNLIMITED MaxNodes=UNLIMITED" in lines


def test_newer_slurm_is_told_to_leave_control_groups_alone() -> None:
    assert render_cgroup_conf((24, 11)) == "CgroupPlugin=disabled\n"
    assert render_cgroup_conf((22, 5)) == "CgroupPlugin=cgroup/v1\n"


def test_requeue_delay_is_used_only_where_slurm_knows_it() -> None:
    spec = LabSpec(nodes=2)
    assert "SchedulerParameters=bf_interval=5,batch_sched_delay=0,requeue_delay=1" in _conf(spec, (26, 5))
    assert "SchedulerParameters=bf_interval=5,batch_sched_delay=0" in _conf(spec, (24, 11))


def test_each_device_is_one_gpu() -> None:
    text = render_gres_conf((Path("/lab/dev/nvidia0"), Path("/lab/dev/nvidia1")))
    assert text == "Name=gpu File=/lab/dev/nvidia0\nName=gpu File=/lab/dev/nvidia1\n"


def test_accounting_goes_to_the_private_database_without_a_password() -> None:
    assert "AccountingStoragePort=20002" in _conf(LabSpec(nodes=2, accounting=True))
    text = render_slurmdbd_conf(_LAYOUT, _PORTS, user="games")
    assert "DbdPort=20002\n" in text
    assert "StoragePass" not in text


@pytest.mark.parametrize("path", ["/tmp/a b", "/tmp/%n", "/tmp/a#b", "/tmp/a\nb", "/tmp/$(touch x)"])
def test_a_path_that_slurm_conf_cannot_carry_is_refused(path: str) -> None:
    with pytest.raises(LabError, match="--dir"):
        check_root(Path(path))


def test_a_folder_too_deep_for_unix_sockets_is_recognised() -> None:
    assert fits_sockets(Path("/home/somebody/.local/state/supervisor/lab"))
    assert not fits_sockets(Path("/tmp") / ("x" * 60))


@pytest.mark.parametrize(
    "values",
    [
        {"nodes": 0},
        {"nodes": 257},
        {"gpus_per_node": -1},
        {"partitions": ()},
        {"extra_conf": ("KillWait",)},
        {"extra_conf": ("KillWait=1\nSlurmUser=root",)},
        {"cluster_name": "a b"},
    ],
)
def test_a_spec_out_of_bounds_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(LabError):
        LabSpec(**values)  # type: ignore[arg-type]


def test_a_partition_cannot_smuggle_other_settings_in() -> None:
    with pytest.raises(LabError):
        PartitionSpec(name="x Default=YES")
    with pytest.raises(LabError):
        PartitionSpec(nodes="ALL AllowGroups=x")


def test_a_spec_survives_the_record() -> None:
    spec = LabSpec(nodes=3, partitions=(PartitionSpec(name="gpu", max_nodes=2),), extra_conf=("KillWait=9",))
    assert LabSpec.from_json(spec.to_json()) == spec
