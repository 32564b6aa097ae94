"""Plans what one sweep would do for one run, as a value; the dry run prints it, the sweep carries it out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from supervisor.checkpoint.choice import choose
from supervisor.decide.next import NextMove, is_over, move_after_end, move_while_live
from supervisor.decide.nodes import DrainCount, decide_nodes, is_shared
from supervisor.decide.sizing import SizeChoice, choose_size, count_usable, sizes_to_ask, starts_now
from supervisor.diagnose.verdict import diagnose, is_success, lost_nodes, stuck_nodes
from supervisor.domain.checkpoint import Choice
from supervisor.domain.decision import Decision, Diagnosis, NodeDecision, Verdict
from supervisor.domain.evidence import Sighting
from supervisor.domain.facts import BidOutcome, Known, NodeRow, PartitionRow
from supervisor.domain.failure import NODE_CLASSES
from supervisor.domain.folder import RunFolder
from supervisor.domain.ids import NodeName
from supervisor.domain.nodeset import fold, unfold
from supervisor.domain.policy import Policy
from supervisor.domain.run import Allocation, Run, RunState
from supervisor.domain.signature import Signature
from supervisor.domain.spec import JobSpec
from supervisor.intake.plan import sbatch_options
from supervisor.observe.scheduler import ClusterView
from supervisor.slurm.client import Slurm

ASSUMED_LIMIT = timedelta(days=1)
"""How long an allocation is taken to run where the job file sets no time limit."""

MAX_PASSED_OVER = 3
"""How many checkpoints that are not used a decision names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What was seen of a run and what follows from it."""

    run: Run
    spec: JobSpec
    allocation: Allocation
    sighting: Sighting | None
    """None when the allocation had been judged by an earlier sweep."""
    diagnosis: Diagnosis | None
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a run is planned with, besides what is its own."""

    view: ClusterView
    slurm: Slurm
    policy: Policy
    signatures: tuple[Signature, ...]
    now: datetime
    avoided: tuple[tuple[NodeName, int | None], ...]
    """Nodes that we keep off, each with the run it is for (None for all)."""
    drains: DrainCount
    saved: bool
    """A checkpoint of the run was seen once."""
    partitions: list[PartitionRow]
    """Shared by all runs of a sweep, and filled when the first of them asks."""

    def rows(self) -> tuple[NodeRow, ...]:
        """Return all nodes; a sweep is never planned without them."""
        return self.view.nodes.value if isinstance(self.view.nodes, Known) else ()

    def partition(self, name: str | None) -> PartitionRow | None:
        """Return a partition by name, the default one for None; asked once in a sweep, when first needed."""
        if not self.partitions:
            reading = self.slurm.partitions()
            if isinstance(reading, Known):
                self.partitions.extend(reading.value)
        return next(
            (row for row in self.partitions if row.name == name or (name is None and row.default)), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run whose last allocation is over."""

    run: Run
    spec: JobSpec
    history: Sequence[Allocation]
    sighting: Sighting | None
    diagnosis: Diagnosis | None

    @property
    def judged(self) -> Allocation:
        """The allocation that is judged."""
        return self.history[-1]


def plan_run(
    run: Run, spec: JobSpec, history: Sequence[Allocation], sighting: Sighting, context: Context
) -> RunPlan:
    """Plan for a run whose last allocation is not yet judged."""
    allocation = history[-1]
    suspects = bool(lost_nodes(sighting) or stuck_nodes(sighting))
    if not is_over(sighting, suspects, context.policy):
        move = move_while_live(allocation, sighting, context.policy)
        return RunPlan(
            run=run,
            spec=spec,
            allocation=allocation,
            sighting=sighting,
            diagnosis=None,
            decision=_simple(run, allocation, move),
        )
    diagnosis = None if is_success(sighting) else diagnose(sighting, context.signatures)
    case = Case(run=run, spec=spec, history=history, sighting=sighting, diagnosis=diagnosis)
    return _plan_next(case, context)


def replan_run(
    run: Run,
    spec: JobSpec,
    history: Sequence[Allocation],
    diagnosis: Diagnosis,
    context: Context,
    *,
    resumed: bool,
) -> RunPlan:
    """Plan for a run whose last allocation was judged before: a sweep was cut short, or the run waits.

    ``resumed``: a person said that it shall go on, whatever the budgets say.
    """
    case = Case(run=run, spec=spec, history=history, sighting=None, diagnosis=diagnosis)
    return _plan_next(case, context, resumed=resumed)


def _plan_next(case: Case, context: Context, *, resumed: bool = False) -> RunPlan:
    run, spec = case.run, case.spec
    choice = _choose_checkpoint(case, before_step=None)
    if resumed and run.state is not RunState.CANCELLING:
        move = NextMove(verdict=Verdict.RESUBMIT, rule="resumed", text="resumed by hand")
    else:
        newest = choice.chosen.step if choice.chosen else None
        move = move_after_end(
            run, spec, case.history, case.diagnosis, newest_step=newest, policy=context.policy
        )
    nodes = _decide_nodes(case, context)
    if move.verdict is Verdict.RESUBMIT:
        decision = _resubmission(case, move, choice, nodes, context)
    else:
        decision = _simple(run, case.judged, move, nodes=nodes)
    return RunPlan(
        run=run,
        spec=spec,
        allocation=case.judged,
        sighting=case.sighting,
        diagnosis=case.diagnosis,
        decision=decision,
    )


def _decide_nodes(case: Case, context: Context) -> tuple[NodeDecision, ...]:
    if case.diagnosis is None or case.sighting is None:
        return ()  # an earlier sweep decided about the nodes when it judged the allocation
    return decide_nodes(
        case.run.id,
        case.judged.no,
        case.diagnosis,
        num_nodes=case.judged.num_nodes,
        rows={row.name: row for row in context.rows()},
        drains=context.drains,
        policy=context.policy.nodes,
        now=context.now,
    )


def _resubmission(
    case: Case, move: NextMove, choice: Choice, nodes: tuple[NodeDecision, ...], context: Context
) -> Decision:
    """Settle checkpoint, exclusions and size of the next allocation."""
    judged = case.judged
    if move.step_back and choice.chosen is not None:
        used = judged.resume_step if judged.resume_step is not None else choice.chosen.step
        choice = _choose_checkpoint(case, before_step=min(used, choice.chosen.step))
    obstacle = _obstacle(case, move, choice, context)
    if obstacle is not None:
        return _simple(case.run, judged, obstacle, nodes=nodes)
    exclude = _exclusions(case, context)
    size = _choose_size(case, exclude, context, grow=move.grow)
    if size.num_nodes is None:
        text = f"{move.text}; waiting for nodes: {size.text}"
        wait = NextMove(verdict=Verdict.WAIT, rule="no_size_can_start", text=text)
        return _simple(case.run, judged, wait, nodes=nodes)
    start = f"step {choice.chosen.step}" if choice.chosen else "step 0 (no checkpoint yet)"
    text = f"{move.text}; resubmit on {size.num_nodes} nodes from {start} ({size.text}){_passed_over(choice)}"
    if _is_shared(case, context):
        text += "; so many nodes at once are a shared incident: none is blamed"
    return Decision(
        run_id=case.run.id,
        allocation_no=judged.no,
        verdict=Verdict.RESUBMIT,
        rule=move.rule,
        text=text,
        num_nodes=size.num_nodes,
        exclude=exclude,
        resume_from=str(choice.chosen.path) if choice.chosen else None,
        resume_step=choice.chosen.step if choice.chosen else None,
        nodes=nodes,
        budget_left=move.budget_left,
        expected_start=size.start_at,
    )


def _obstacle(case: Case, move: NextMove, choice: Choice, context: Context) -> NextMove | None:
    """Return why there is no checkpoint to start from, when starting at step 0 would be wrong."""
    if choice.chosen is not None:
        return None
    if choice.is_blind:
        text = f"{move.text}; the checkpoints cannot be judged right now: {_why_blind(choice)}"
        return NextMove(verdict=Verdict.WAIT, rule="checkpoint.blind", text=text)
    if context.saved or any(item.resume_step is not None for item in case.history):
        where = _checkpoint_dir(case.spec, case.run)
        text = (
            f"{move.text}; no whole checkpoint is left in {where}, and progress was recorded: not from step 0"
            f"{_passed_over(choice)}"
        )
        return NextMove(verdict=Verdict.HOLD, rule="checkpoint.gone", text=text)
    return None


def _is_shared(case: Case, context: Context) -> bool:
    """Say whether the nodes that failed did so for a common reason."""
    return case.diagnosis is not None and is_shared(
        case.diagnosis, case.judged.num_nodes, context.policy.nodes
    )


def _choose_size(case: Case, exclude: tuple[NodeName, ...], context: Context, *, grow: bool) -> SizeChoice:
    spec = case.spec
    partition = context.partition(spec.slurm.partition)
    barred = (*exclude, *unfold(spec.slurm.exclude or ""))
    usable = count_usable(context.rows(), partition.nodes if partition else (), barred)
    sizes = [size for size in spec.sizes() if not grow or size > case.judged.num_nodes]
    if usable < sizes[-1]:
        text = f"{usable} usable, the smallest allowed size is {sizes[-1]}"
        return SizeChoice(num_nodes=None, start_at=None, text=text)
    script = RunFolder(case.run.folder).script(case.judged.no)
    bids: dict[int, BidOutcome] = {}
    for size in sizes_to_ask(sizes, usable):
        options = sbatch_options(spec, num_nodes=size, exclude=exclude)
        bids[size] = context.slurm.predict_start(script, options, size)
        if starts_now(bids[size], now=context.now, within=context.policy.start_now_within):
            break
    return choose_size(
        bids,
        want=spec.nodes.want,
        horizon=spec.time_limit() or ASSUMED_LIMIT,
        now=context.now,
        start_now_within=context.policy.start_now_within,
    )


def _exclusions(case: Case, context: Context) -> tuple[NodeName, ...]:
    """Return the nodes to keep off, without those that Slurm no longer knows.

    sbatch refuses ``--exclude`` with an unknown name altogether, so one deleted node would end every retry.
    """
    known = {row.name for row in context.rows()}
    wanted = {node for node, run_id in context.avoided if run_id in {None, case.run.id}}
    # This run keeps off what failed under it for its next allocation, whatever was decided for all runs.
    if case.diagnosis is not None and case.sighting is not None and not _is_shared(case, context):
        wanted |= set(case.diagnosis.nodes)
    return tuple(sorted(wanted & known))


def _choose_checkpoint(case: Case, *, before_step: int | None) -> Choice:
    directory = _checkpoint_dir(case.spec, case.run)
    if directory is None:
        return Choice(chosen=None, skipped=())
    # Only where a node was lost can processes outlive their allocation. Elsewhere a save may rightly be
    # committed after the end that Slurm notes: in the grace time between SIGTERM and SIGKILL (KillWait).
    ended: dict[int, datetime] = {
        item.no: item.ended_at
        for item in case.history
        if item.ended_at is not None and item.failure_class in NODE_CLASSES
    }
    sighting, diagnosis = case.sighting, case.diagnosis
    if sighting is not None and diagnosis is not None and diagnosis.failure_class in NODE_CLASSES:
        ended[case.judged.no] = sighting.job_ended_at or sighting.at
    return choose(directory, ended=ended, before_step=before_step)


def _checkpoint_dir(spec: JobSpec, run: Run) -> Path | None:
    return run.folder.parent.parent / spec.checkpoint.dir if spec.checkpoint is not None else None


def _why_blind(choice: Choice) -> str:
    return choice.unreadable or "; ".join(reason for _, reason in choice.skipped)


def _passed_over(choice: Choice) -> str:
    """Say which newer checkpoints are not used and why, in a few words for a person."""
    shown = [f"{item.path.name}: {reason}" for item, reason in choice.skipped[:MAX_PASSED_OVER]]
    more = len(choice.skipped) - len(shown)
    return "".join(f"; not {text}" for text in shown) + (f"; nor {more} more" if more else "")


def _simple(
    run: Run, allocation: Allocation, move: NextMove, *, nodes: tuple[NodeDecision, ...] = ()
) -> Decision:
    return Decision(
        run_id=run.id,
        allocation_no=allocation.no,
        verdict=move.verdict,
        rule=move.rule,
        text=move.text,
        nodes=nodes,
        budget_left=move.budget_left,
    )


def describe(plan: RunPlan) -> str:
    """Return the plan as the one sentence that a sweep prints for a run."""
    decision = plan.decision
    extra = [f"{item.measure} {item.node} ({item.reason})" for item in decision.nodes]
    if decision.exclude:
        extra.append(f"exclude {fold(decision.exclude)}")
    tail = f" [{'; '.join(extra)}]" if extra else ""
    return f"run {plan.run.id} {plan.run.name}: {decision.verdict}: {decision.text}{tail}"
