"""Plans what one sweep would do for one run, as a value; the dry run prints it, the sweep carries it out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """What all runs of one sweep share."""

    view: ClusterView
    slurm: Slurm
    policy: Policy
    signatures: tuple[Signature, ...]
    now: datetime
    avoided: tuple[tuple[NodeName, int | None], ...]
    """Nodes that we keep off, each with the run it is for (None for all)."""
    drains: DrainCount
    partitions: list[PartitionRow] = field(default_factory=list)

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
    return _plan_next(run, spec, history, sighting, diagnosis, context)


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
    return _plan_next(run, spec, history, None, diagnosis, context, resumed=resumed)


def _plan_next(
    run: Run,
    spec: JobSpec,
    history: Sequence[Allocation],
    sighting: Sighting | None,
    diagnosis: Diagnosis | None,
    context: Context,
    *,
    resumed: bool = False,
) -> RunPlan:
    allocation = history[-1]
    choice = _choose_checkpoint(spec, history, sighting, run, before_step=None)
    newest = choice.chosen.step if choice.chosen else None
    move = (
        NextMove(verdict=Verdict.RESUBMIT, rule="resumed", text="resumed by hand")
        if resumed and run.state is not RunState.CANCELLING
        else move_after_end(run, spec, history, diagnosis, newest_step=newest, policy=context.policy)
    )
    nodes = (
        decide_nodes(
            run.id,
            allocation.no,
            diagnosis,
            num_nodes=allocation.num_nodes,
            rows={row.name: row for row in context.rows()},
            drains=context.drains,
            policy=context.policy.nodes,
            now=context.now,
        )
        if diagnosis is not None and sighting is not None
        else ()
    )
    if move.verdict is Verdict.RESUBMIT:
        decision = _resubmission(run, spec, history, move, choice, nodes, diagnosis, sighting, context)
    else:
        decision = _simple(run, allocation, move, nodes=nodes)
    return RunPlan(
        run=run, spec=spec, allocation=allocation, sighting=sighting, diagnosis=diagnosis, decision=decision
    )


def _resubmission(
    run: Run,
    spec: JobSpec,
    history: Sequence[Allocation],
    move: NextMove,
    choice: Choice,
    nodes: tuple[NodeDecision, ...],
    diagnosis: Diagnosis | None,
    sighting: Sighting | None,
    context: Context,
) -> Decision:
    """Settle checkpoint, exclusions and size of the next allocation."""
    allocation = history[-1]
    if move.step_back and choice.chosen is not None:
        used = allocation.resume_step if allocation.resume_step is not None else choice.chosen.step
        choice = _choose_checkpoint(spec, history, sighting, run, before_step=min(used, choice.chosen.step))
    if choice.chosen is None and any(item.resume_step is not None for item in history):
        text = f"{move.text}; no whole checkpoint is left in {_checkpoint_dir(spec, run)}, and step 0 is no answer"
        return _simple(
            run, allocation, NextMove(verdict=Verdict.HOLD, rule="checkpoint.gone", text=text), nodes=nodes
        )
    exclude = _exclusions(run, spec, diagnosis, context)
    size = _choose_size(spec, allocation, exclude, move, run, context)
    if size.num_nodes is None:
        wait = NextMove(
            verdict=Verdict.WAIT,
            rule="no_size_can_start",
            text=f"{move.text}; waiting for nodes: {size.text}",
        )
        return _simple(run, allocation, wait, nodes=nodes)
    start = f"step {choice.chosen.step}" if choice.chosen else "step 0 (no checkpoint yet)"
    shared = (
        diagnosis is not None
        and bool(diagnosis.nodes)
        and is_shared(diagnosis, allocation.num_nodes, context.policy.nodes)
    )
    return Decision(
        run_id=run.id,
        allocation_no=allocation.no,
        verdict=Verdict.RESUBMIT,
        rule=move.rule,
        text=(
            f"{move.text}; resubmit on {size.num_nodes} nodes from {start} ({size.text})"
            + ("; so many nodes at once are a shared incident: none is blamed" if shared else "")
        ),
        num_nodes=size.num_nodes,
        exclude=exclude,
        resume_from=str(choice.chosen.path) if choice.chosen else None,
        resume_step=choice.chosen.step if choice.chosen else None,
        nodes=nodes,
        budget_left=move.budget_left,
        expected_start=size.start_at,
    )


def _choose_size(
    spec: JobSpec,
    allocation: Allocation,
    exclude: tuple[NodeName, ...],
    move: NextMove,
    run: Run,
    context: Context,
) -> SizeChoice:
    partition = context.partition(spec.slurm.partition)
    barred = (*exclude, *unfold(spec.slurm.exclude or ""))
    usable = count_usable(context.rows(), partition.nodes if partition else (), barred)
    sizes = [size for size in spec.sizes() if not move.grow or size > allocation.num_nodes]
    if usable < sizes[-1]:
        return SizeChoice(
            num_nodes=None, start_at=None, text=f"{usable} usable, the smallest allowed size is {sizes[-1]}"
        )
    script = RunFolder(run.folder).script(allocation.no)
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


def _exclusions(
    run: Run, spec: JobSpec, diagnosis: Diagnosis | None, context: Context
) -> tuple[NodeName, ...]:
    """Return the nodes to keep off, without those that Slurm no longer knows.

    sbatch refuses ``--exclude`` with an unknown name altogether, so one deleted node would end every retry.
    """
    known = {row.name for row in context.rows()}
    wanted = {node for node, run_id in context.avoided if run_id in {None, run.id}}
    if diagnosis is not None and not is_shared(diagnosis, spec.nodes.want, context.policy.nodes):
        wanted |= set(diagnosis.nodes)
    return tuple(sorted(wanted & known))


def _choose_checkpoint(
    spec: JobSpec,
    history: Sequence[Allocation],
    sighting: Sighting | None,
    run: Run,
    *,
    before_step: int | None,
) -> Choice:
    directory = _checkpoint_dir(spec, run)
    if directory is None:
        return Choice(chosen=None, skipped=())
    ended = {item.no: item.ended_at for item in history if item.ended_at is not None}
    if sighting is not None and sighting.job_ended_at is not None:
        ended[history[-1].no] = sighting.job_ended_at
    return choose(directory, ended=dict(ended), before_step=before_step)


def _checkpoint_dir(spec: JobSpec, run: Run) -> Path | None:
    return run.folder.parent.parent / spec.checkpoint.dir if spec.checkpoint is not None else None


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
