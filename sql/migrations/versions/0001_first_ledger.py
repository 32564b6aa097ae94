"""The first ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Nothing here comes from supervisor.ledger.tables: that moves on, and what was released stays as it was.
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
_LIVE = "state IN ('pending', 'planned', 'running')"
_HAS_JOB = "job_id IS NOT NULL"

_SQLITE = (
    """\
CREATE TRIGGER event_forbids_update BEFORE UPDATE ON event
BEGIN
    SELECT RAISE(ABORT, 'event is append-only');
END""",
    """\
CREATE TRIGGER event_forbids_delete BEFORE DELETE ON event
BEGIN
    SELECT RAISE(ABORT, 'event is append-only');
END""",
    """\
CREATE TRIGGER decision_forbids_update BEFORE UPDATE ON decision
BEGIN
    SELECT RAISE(ABORT, 'decision is append-only');
END""",
    """\
CREATE TRIGGER decision_forbids_delete BEFORE DELETE ON decision
BEGIN
    SELECT RAISE(ABORT, 'decision is append-only');
END""",
    """\
CREATE TRIGGER decision_node_forbids_update BEFORE UPDATE ON decision_node
BEGIN
    SELECT RAISE(ABORT, 'decision_node is append-only');
END""",
    """\
CREATE TRIGGER decision_node_forbids_delete BEFORE DELETE ON decision_node
BEGIN
    SELECT RAISE(ABORT, 'decision_node is append-only');
END""",
    """\
CREATE VIEW allocation_time AS
SELECT
    run_id,
    no,
    ROUND((julianday(started_at) - julianday(submitted_at)) * 86400.0, 3) AS queue_wait_s,
    ROUND((julianday(first_step_at) - julianday(started_at)) * 86400.0, 3) AS start_up_s,
    ROUND((julianday(noticed_at) - julianday(ended_at)) * 86400.0, 3) AS detection_s
FROM allocation""",
    """\
CREATE VIEW avoided_now AS
SELECT node, run_id, until, reason, created_at
FROM avoid
WHERE lifted_at IS NULL AND until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')""",
)

_POSTGRESQL = (
    """\
CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only';
END
$$""",
    """\
CREATE TRIGGER event_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON event
FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()""",
    """\
CREATE TRIGGER decision_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON decision
FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()""",
    """\
CREATE TRIGGER decision_node_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON decision_node
FOR EACH STATEMENT EXECUTE FUNCTION forbid_change()""",
    """\
CREATE VIEW allocation_time AS
SELECT
    run_id,
    no,
    CAST(EXTRACT(EPOCH FROM started_at - submitted_at) AS DOUBLE PRECISION) AS queue_wait_s,
    CAST(EXTRACT(EPOCH FROM first_step_at - started_at) AS DOUBLE PRECISION) AS start_up_s,
    CAST(EXTRACT(EPOCH FROM noticed_at - ended_at) AS DOUBLE PRECISION) AS detection_s
FROM allocation""",
    """\
CREATE VIEW avoided_now AS
SELECT node, run_id, until, reason, created_at
FROM avoid
WHERE lifted_at IS NULL AND until > CURRENT_TIMESTAMP""",
)


def upgrade() -> None:
    _create_lease()
    _create_run()
    _create_action()
    _create_allocation()
    _create_avoid()
    _create_decision()
    _create_drain_record()
    _create_event()
    _create_decision_node()
    # exec_driver_sql: colons in the text are no parameters.
    connection = op.get_bind()
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement)


def _create_lease() -> None:
    op.create_table(
        "lease",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("acquired_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )


def _create_run() -> None:
    op.create_table(
        "run",
        sa.Column("id", _ID, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("spec_json", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("uid", name=op.f("uq_run_uid")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_run_name"), "run", ["name"], unique=False)
    op.create_index(op.f("ix_run_state"), "run", ["state"], unique=False)


def _create_action() -> None:
    op.create_table(
        "action",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("run_id", _ID, nullable=True),
        sa.Column("allocation_no", sa.Integer(), nullable=True),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("planned_at", _TIME, nullable=False),
        sa.Column("acted_at", _TIME, nullable=True),
        sa.Column("settled_at", _TIME, nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_action_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_action")),
        sa.UniqueConstraint("key", name=op.f("uq_action_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_action_run_id"), "action", ["run_id"], unique=False)
    op.create_index(op.f("ix_action_state"), "action", ["state"], unique=False)


def _create_allocation() -> None:
    op.create_table(
        "allocation",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("num_nodes", sa.Integer(), nullable=False),
        sa.Column("excluded", sa.Text(), nullable=False),
        sa.Column("resume_from", sa.Text(), nullable=True),
        sa.Column("resume_step", sa.BigInteger(), nullable=True),
        sa.Column("planned_at", _TIME, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("submitted_at", _TIME, nullable=True),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.Column("noticed_at", _TIME, nullable=True),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("slurm_state", sa.Text(), nullable=False),
        sa.Column("slurm_reason", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("exit_signal", sa.Integer(), nullable=True),
        sa.Column("first_step_at", _TIME, nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step_at", _TIME, nullable=True),
        sa.Column("failure_class", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_allocation_run_id_run")),
        sa.PrimaryKeyConstraint("run_id", "no", name=op.f("pk_allocation")),
        sa.UniqueConstraint("token", name=op.f("uq_allocation_token")),
    )
    op.create_index(op.f("ix_allocation_job_id"), "allocation", ["job_id"], unique=False)
    op.create_index(op.f("ix_allocation_state"), "allocation", ["state"], unique=False)
    op.create_index(
        "uq_allocation_live",
        "allocation",
        ["run_id"],
        unique=True,
        sqlite_where=sa.text(_LIVE),
        postgresql_where=sa.text(_LIVE),
    )
    op.create_index(
        "uq_allocation_slurm_job",
        "allocation",
        ["cluster", "job_id", "submitted_at", "restart_count"],
        unique=True,
        sqlite_where=sa.text(_HAS_JOB),
        postgresql_where=sa.text(_HAS_JOB),
    )


def _create_avoid() -> None:
    op.create_table(
        "avoid",
        sa.Column("id", _ID, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("run_id", _ID, nullable=True),
        sa.Column("until", _TIME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("lifted_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_avoid_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_avoid")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_avoid_node"), "avoid", ["node"], unique=False)


def _create_decision() -> None:
    op.create_table(
        "decision",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("run_id", _ID, nullable=False),
        sa.Column("allocation_no", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("num_nodes", sa.Integer(), nullable=True),
        sa.Column("exclude", sa.Text(), nullable=False),
        sa.Column("resume_from", sa.Text(), nullable=True),
        sa.Column("resume_step", sa.BigInteger(), nullable=True),
        sa.Column("budget_left", sa.Integer(), nullable=True),
        sa.Column("expected_start", _TIME, nullable=True),
        sa.Column("planned_no", sa.Integer(), nullable=True),
        sa.Column("failure_class", sa.Text(), nullable=True),
        sa.Column("diagnosis", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_decision_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decision_run_id"), "decision", ["run_id"], unique=False)


def _create_drain_record() -> None:
    op.create_table(
        "drain_record",
        sa.Column("id", _ID, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("drained_at", _TIME, nullable=False),
        sa.Column("run_id", _ID, nullable=True),
        sa.Column("reason_user", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_drain_record_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_drain_record")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_drain_record_node"), "drain_record", ["node"], unique=False)


def _create_event() -> None:
    op.create_table(
        "event",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("run_id", _ID, nullable=True),
        sa.Column("allocation_no", sa.Integer(), nullable=True),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_event_run_id_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_event_at"), "event", ["at"], unique=False)
    op.create_index(op.f("ix_event_run_id"), "event", ["run_id"], unique=False)


def _create_decision_node() -> None:
    op.create_table(
        "decision_node",
        sa.Column("decision_id", _ID, autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("at_fault", sa.Boolean(), nullable=False),
        sa.Column("measure", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("avoid_until", _TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decision.id"], name=op.f("fk_decision_node_decision_id_decision")
        ),
        sa.PrimaryKeyConstraint("decision_id", "node", name=op.f("pk_decision_node")),
    )
    op.create_index(op.f("ix_decision_node_node"), "decision_node", ["node"], unique=False)
