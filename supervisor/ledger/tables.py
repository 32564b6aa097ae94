"""The tables of the ledger; ``sql/schema.sql`` shows the same as plain SQL."""

import sqlalchemy as sa

from supervisor.domain.action import ActionKind, ActionState
from supervisor.domain.decision import NodeMeasure, Verdict
from supervisor.domain.run import LIVE_ALLOCATIONS, AllocationState, RunState
from supervisor.ledger.rows import DrainState
from supervisor.ledger.types import CleanText, JsonText, NodeNames, PathText, UtcTime, Word

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only where the column's type is exactly INTEGER.
_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LIVE = "state IN ({})".format(", ".join(f"'{state}'" for state in sorted(LIVE_ALLOCATIONS)))

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("uid", CleanText, nullable=False, unique=True),
    sa.Column("name", CleanText, nullable=False, index=True),
    sa.Column("owner", CleanText, nullable=False),
    sa.Column("cluster", CleanText, nullable=False),
    sa.Column("state", Word(RunState), nullable=False, index=True),
    sa.Column("reason", CleanText, nullable=False),
    sa.Column("spec_json", CleanText, nullable=False),
    sa.Column("folder", PathText, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("changed_at", UtcTime, nullable=False),
    # A run's number is printed, mailed and put into folder names: it is never given out twice.
    sqlite_autoincrement=True,
)

allocation = sa.Table(
    "allocation",
    metadata,
    sa.Column("run_id", _Id, sa.ForeignKey("run.id"), primary_key=True, autoincrement=False),
    sa.Column("no", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token", CleanText, nullable=False, unique=True),
    sa.Column("cluster", CleanText, nullable=False),
    sa.Column("state", Word(AllocationState), nullable=False, index=True),
    sa.Column("num_nodes", sa.Integer, nullable=False),
    sa.Column("excluded", NodeNames, nullable=False),
    sa.Column("resume_from", CleanText),
    sa.Column("resume_step", sa.BigInteger),
    sa.Column("planned_at", UtcTime, nullable=False),
    sa.Column("job_id", sa.BigInteger, index=True),
    sa.Column("submitted_at", UtcTime),
    sa.Column("restart_count", sa.Integer, nullable=False),
    sa.Column("started_at", UtcTime),
    sa.Column("ended_at", UtcTime),
    sa.Column("noticed_at", UtcTime),
    sa.Column("nodes", NodeNames, nullable=False),
    sa.Column("slurm_state", CleanText, nullable=False),
    sa.Column("slurm_reason", CleanText, nullable=False),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("exit_signal", sa.Integer),
    sa.Column("first_step_at", UtcTime),
    sa.Column("last_step", sa.BigInteger),
    sa.Column("last_step_at", UtcTime),
    sa.Column("failure_class", CleanText),
)
# Promise P1 in the database itself: whatever the code does, a run has at most one live allocation.
sa.Index(
    "uq_allocation_live",
    allocation.c.run_id,
    unique=True,
    sqlite_where=sa.text(_LIVE),
    postgresql_where=sa.text(_LIVE),
)
sa.Index(
    "uq_allocation_slurm_job",
    allocation.c.cluster,
    allocation.c.job_id,
    allocation.c.submitted_at,
    allocation.c.restart_count,
    unique=True,
    sqlite_where=sa.text("job_id IS NOT NULL"),
    postgresql_where=sa.text("job_id IS NOT NULL"),
)

action = sa.Table(
    "action",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("key", CleanText, nullable=False, unique=True),
    sa.Column("kind", Word(ActionKind), nullable=False),
    sa.Column("state", Word(ActionState), nullable=False, index=True),
    sa.Column("run_id", _Id, sa.ForeignKey("run.id"), index=True),
    sa.Column("allocation_no", sa.Integer),
    sa.Column("node", CleanText),
    sa.Column("token", CleanText),
    sa.Column("payload", CleanText, nullable=False),
    sa.Column("detail", CleanText, nullable=False),
    sa.Column("planned_at", UtcTime, nullable=False),
    sa.Column("acted_at", UtcTime),
    sa.Column("settled_at", UtcTime),
    sa.Column("actor", CleanText, nullable=False),
    sqlite_autoincrement=True,
)

event = sa.Table(
    "event",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("at", UtcTime, nullable=False, index=True),
    sa.Column("run_id", _Id, sa.ForeignKey("run.id"), index=True),
    sa.Column("allocation_no", sa.Integer),
    sa.Column("node", CleanText),
    sa.Column("kind", CleanText, nullable=False),
    sa.Column("text", CleanText, nullable=False),
    sa.Column("data", JsonText),
    sqlite_autoincrement=True,
)

decision = sa.Table(
    "decision",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("run_id", _Id, sa.ForeignKey("run.id"), nullable=False, index=True),
    sa.Column("allocation_no", sa.Integer),
    sa.Column("verdict", Word(Verdict), nullable=False),
    sa.Column("rule", CleanText, nullable=False),
    sa.Column("text", CleanText, nullable=False),
    sa.Column("num_nodes", sa.Integer),
    sa.Column("exclude", NodeNames, nullable=False),
    sa.Column("resume_from", CleanText),
    sa.Column("resume_step", sa.BigInteger),
    sa.Column("budget_left", sa.Integer),
    sa.Column("expected_start", UtcTime),
    sa.Column("planned_no", sa.Integer),
    sa.Column("failure_class", CleanText),
    sa.Column("diagnosis", JsonText),
    sqlite_autoincrement=True,
)

# One row per node that a decision speaks about, so that SQL can count by node.
decision_node = sa.Table(
    "decision_node",
    metadata,
    sa.Column("decision_id", _Id, sa.ForeignKey("decision.id"), primary_key=True, autoincrement=False),
    sa.Column("node", CleanText, primary_key=True),
    sa.Column("at_fault", sa.Boolean, nullable=False),
    sa.Column("measure", Word(NodeMeasure)),
    sa.Column("reason", CleanText, nullable=False),
    sa.Column("avoid_until", UtcTime),
)
sa.Index(None, decision_node.c.node)

avoid = sa.Table(
    "avoid",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("node", CleanText, nullable=False, index=True),
    sa.Column("run_id", _Id, sa.ForeignKey("run.id")),
    sa.Column("until", UtcTime, nullable=False),
    sa.Column("reason", CleanText, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("lifted_at", UtcTime),
    sqlite_autoincrement=True,
)

lease = sa.Table(
    "lease",
    metadata,
    sa.Column("name", CleanText, primary_key=True),
    sa.Column("holder", CleanText, nullable=False),
    sa.Column("acquired_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
)

drain_record = sa.Table(
    "drain_record",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("node", CleanText, nullable=False, index=True),
    sa.Column("cluster", CleanText, nullable=False),
    sa.Column("reason", CleanText, nullable=False),
    sa.Column("drained_at", UtcTime, nullable=False),
    sa.Column("run_id", _Id, sa.ForeignKey("run.id")),
    sa.Column("reason_user", CleanText, nullable=False),
    sa.Column("state", Word(DrainState), nullable=False),
    sqlite_autoincrement=True,
)
