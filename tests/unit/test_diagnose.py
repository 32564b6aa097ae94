"""Why an attempt ended: the first cause wins, and nothing proven stays unknown."""

import pytest

from supervisor.diagnose.verdict import diagnose, is_success, stuck_nodes
from supervisor.domain.evidence import Phase
from supervisor.domain.facts import JobState, NodeBase
from supervisor.domain.failure import FailureClass
from supervisor.hooks import load_plugins, load_signatures
from tests.unit.facts import job, log, marker, names, node, sighting

SIGNATURES = load_signatures(load_plugins())


def test_a_job_that_ended_with_zero_on_healthy_nodes_is_a_success() -> None:
    seen = sighting(job=job(JobState.COMPLETED, exit_code=0), marker=marker(0), node_rows=(node("n1"),))
    assert is_success(seen)


def test_exit_code_zero_is_no_success_when_a_node_was_lost() -> None:
    lost = node("n1", NodeBase.DOWN, "NOT_RESPONDING")
    seen = sighting(job=job(JobState.COMPLETED, exit_code=0), marker=marker(0), node_rows=(lost,))
    assert not is_success(seen)
    assert diagnose(seen, SIGNATURES).nodes == names(1)


def test_exit_code_zero_is_a_success_in_spite_of_a_lost_node_when_the_done_condition_holds() -> None:
    lost = node("n1", NodeBase.DOWN)
    seen = sighting(job=job(JobState.COMPLETED, exit_code=0), marker=marker(0), node_rows=(lost,), done=True)
    assert is_success(seen)


def test_exit_code_zero_is_no_success_when_the_done_condition_does_not_hold() -> None:
    seen = sighting(job=job(JobState.COMPLETED, exit_code=0), marker=marker(0), done=False)
    assert not is_success(seen)
    assert diagnose(seen, SIGNATURES).failure_class is FailureClass.UNKNOWN


def test_a_job_that_is_nowhere_but_left_a_marker_with_zero_is_a_success() -> None:
    assert is_success(sighting(job=None, marker=marker(0)))


def test_a_node_that_does_not_answer_outranks_the_errors_of_its_peers() -> None:
    silent = node("n3", NodeBase.ALLOCATED, "NOT_RESPONDING")
    seen = sighting(
        Phase.COMPLETING,
        job=job(JobState.COMPLETING),
        marker=marker(1),
        node_rows=(node("n1"), silent),
        log=log("RuntimeError: Connection closed by peer", "ValueError: bad"),
    )
    found = diagnose(seen, SIGNATURES)
    assert (found.failure_class, found.nodes) == (FailureClass.NODE_FAIL, names(3))


def test_nodes_that_do_not_come_back_from_an_ended_job_are_suspected() -> None:
    seen = sighting(
        Phase.COMPLETING,
        job=job(JobState.COMPLETING, nodes=names(2)),
        nodes=names(1, 2, 3),
        marker=marker(1),
    )
    assert stuck_nodes(seen) == names(2)
    assert diagnose(seen, SIGNATURES).nodes == names(2)


def test_a_job_whose_nodes_are_all_still_completing_puts_none_under_suspicion() -> None:
    seen = sighting(Phase.COMPLETING, job=job(JobState.COMPLETING, nodes=names(1, 2)), nodes=names(1, 2))
    assert stuck_nodes(seen) == ()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.TIMEOUT, FailureClass.TIME_LIMIT),
        (JobState.DEADLINE, FailureClass.TIME_LIMIT),
        (JobState.PREEMPTED, FailureClass.PREEMPTED),
        (JobState.OUT_OF_MEMORY, FailureClass.HOST_OOM),
        (JobState.CANCELLED, FailureClass.CANCELLED),
        (JobState.NODE_FAIL, FailureClass.NODE_FAIL),
        (JobState.BOOT_FAIL, FailureClass.NODE_FAIL),
    ],
)
def test_what_slurm_says_about_the_end_is_believed(state: JobState, expected: FailureClass) -> None:
    assert diagnose(sighting(job=job(state)), SIGNATURES).failure_class is expected


def test_a_node_failure_that_names_no_node_blames_none() -> None:
    assert diagnose(sighting(job=job(JobState.NODE_FAIL)), SIGNATURES).nodes == ()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (74, FailureClass.FILESYSTEM),
        (76, FailureClass.PREEMPTED),
        (77, FailureClass.SCHEDULER),
        (85, FailureClass.TIME_LIMIT),
    ],
)
def test_the_exit_codes_of_our_own_scripts_have_a_meaning(code: int, expected: FailureClass) -> None:
    seen = sighting(job=job(JobState.FAILED, exit_code=code), marker=marker(code))
    assert diagnose(seen, SIGNATURES).failure_class is expected


def test_the_first_cause_in_the_log_wins_over_a_later_one_and_over_echoes() -> None:
    seen = sighting(
        job=job(JobState.FAILED, exit_code=1),
        marker=marker(1),
        log=log(
            "step=4 loss=2.1",
            "RuntimeError: [..] Connection closed by peer [127.0.0.1]:1234",
            "[rank3]: ValueError: shapes do not match",
            "ModuleNotFoundError: No module named 'x'",
        ),
    )
    found = diagnose(seen, SIGNATURES)
    assert found.failure_class is FailureClass.USER_CODE
    assert found.evidence[0].source == "0001.out:3"
    assert "dependency_env" in found.runner_up


def test_only_echoes_in_the_log_give_the_class_of_the_echo_with_little_confidence() -> None:
    seen = sighting(job=job(JobState.FAILED), marker=marker(1), log=log("Connection reset by peer"))
    found = diagnose(seen, SIGNATURES)
    assert found.failure_class is FailureClass.NCCL_NETWORK
    assert found.confidence <= 0.6


def test_nothing_proven_is_unknown_with_the_last_lines_and_blames_nobody() -> None:
    seen = sighting(job=job(JobState.FAILED), marker=marker(3), log=log("a", "b", "c", "d"))
    found = diagnose(seen, SIGNATURES)
    assert found.failure_class is FailureClass.UNKNOWN
    assert found.nodes == ()
    assert [item.text for item in found.evidence[:3]] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", FailureClass.GPU_OOM),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0", FailureClass.HOST_OOM),
        ("[ 12.3] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", FailureClass.GPU_HARDWARE),
        ("OSError: [Errno 28] No space left on device", FailureClass.FILESYSTEM),
        ("ModuleNotFoundError: No module named 'flash_attn'", FailureClass.DEPENDENCY_ENV),
        ("python: can't open file 'trian.py': [Errno 2] No such file or directory", FailureClass.USER_CODE),
        ("Fatal Python error: Segmentation fault", FailureClass.SEGFAULT_NATIVE),
        ("srun: error: Node failure on node002", FailureClass.NODE_FAIL),
    ],
)
def test_common_lines_are_recognised(line: str, expected: FailureClass) -> None:
    seen = sighting(job=job(JobState.FAILED), marker=marker(1), log=log(line))
    assert diagnose(seen, SIGNATURES).failure_class is expected


def test_a_line_that_only_quotes_an_error_is_no_evidence() -> None:
    seen = sighting(
        job=job(JobState.FAILED),
        marker=marker(1),
        log=log('    raise RuntimeError("KeyError: oops")  # not ValueError: x', "epoch 3 done"),
    )
    assert diagnose(seen, SIGNATURES).failure_class is FailureClass.UNKNOWN


def test_a_training_that_was_asked_to_stop_and_ended_with_zero_has_saved_but_not_finished() -> None:
    stopped = marker(0, reason="signalled")
    seen = sighting(job=job(JobState.COMPLETED, exit_code=0), marker=stopped)
    assert not is_success(seen)
    assert diagnose(seen, SIGNATURES).failure_class is FailureClass.TIME_LIMIT
    finished = sighting(job=job(JobState.COMPLETED, exit_code=0), marker=stopped, done=True)
    assert is_success(finished)


def test_torchruns_exit_code_1_after_the_stop_signal_is_no_failure_of_the_users() -> None:
    seen = sighting(
        job=job(JobState.FAILED, exit_code=1),
        marker=marker(1, reason="signalled"),
        log=log("stopped early at step 40", "ValueError: whatever torchrun prints"),
    )
    assert diagnose(seen, SIGNATURES).failure_class is FailureClass.TIME_LIMIT


def test_a_lost_node_in_the_log_outranks_the_signal_that_came_with_it() -> None:
    seen = sighting(
        job=job(JobState.FAILED),
        marker=marker(255, reason="signalled"),
        log=log("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-01T12:00:00 DUE TO NODE FAILURE"),
    )
    assert diagnose(seen, SIGNATURES).failure_class is FailureClass.NODE_FAIL
