-- The ledger's schema on sqlite, for reading. Generated from supervisor/ledger/tables.py
-- by `python -m supervisor.ledger.schema` (a test compares); sql/migrations makes ledgers.

CREATE TABLE lease (
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    acquired_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    CONSTRAINT pk_lease PRIMARY KEY (name)
);

CREATE TABLE run (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    cluster TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    spec_json TEXT NOT NULL,
    folder TEXT NOT NULL,
    created_at TEXT NOT NULL,
    changed_at TEXT NOT NULL,
    CONSTRAINT uq_run_uid UNIQUE (uid)
);

CREATE INDEX ix_run_name ON run (name);

CREATE INDEX ix_run_state ON run (state);

CREATE TABLE action (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "key" TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    run_id INTEGER,
    allocation_no INTEGER,
    node TEXT,
    token TEXT,
    payload TEXT NOT NULL,
    detail TEXT NOT NULL,
    planned_at TEXT NOT NULL,
    acted_at TEXT,
    settled_at TEXT,
    actor TEXT NOT NULL,
    CONSTRAINT uq_action_key UNIQUE ("key"),
    CONSTRAINT fk_action_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_action_run_id ON action (run_id);

CREATE INDEX ix_action_state ON action (state);

CREATE TABLE allocation (
    run_id INTEGER NOT NULL,
    no INTEGER NOT NULL,
    token TEXT NOT NULL,
    cluster TEXT NOT NULL,
    state TEXT NOT NULL,
    num_nodes INTEGER NOT NULL,
    excluded TEXT NOT NULL,
    resume_from TEXT,
    resume_step BIGINT,
    planned_at TEXT NOT NULL,
    job_id BIGINT,
    submitted_at TEXT,
    restart_count INTEGER NOT NULL,
    started_at TEXT,
    ended_at TEXT,
    noticed_at TEXT,
    nodes TEXT NOT NULL,
    slurm_state TEXT NOT NULL,
    slurm_reason TEXT NOT NULL,
    exit_code BIGINT,
    exit_signal INTEGER,
    first_step_at TEXT,
    last_step BIGINT,
    last_step_at TEXT,
    failure_class TEXT,
    CONSTRAINT pk_allocation PRIMARY KEY (run_id, no),
    CONSTRAINT fk_allocation_run_id_run FOREIGN KEY(run_id) REFERENCES run (id),
    CONSTRAINT uq_allocation_token UNIQUE (token)
);

CREATE INDEX ix_allocation_job_id ON allocation (job_id);

CREATE INDEX ix_allocation_state ON allocation (state);

CREATE UNIQUE INDEX uq_allocation_live ON allocation (run_id) WHERE state IN ('pending', 'planned', 'running');

CREATE UNIQUE INDEX uq_allocation_slurm_job ON allocation (cluster, job_id, submitted_at, restart_count) WHERE job_id IS NOT NULL;

CREATE TABLE avoid (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    node TEXT NOT NULL,
    run_id INTEGER,
    until TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at TEXT NOT NULL,
    lifted_at TEXT,
    CONSTRAINT fk_avoid_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_avoid_node ON avoid (node);

CREATE TABLE decision (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    run_id INTEGER NOT NULL,
    allocation_no INTEGER,
    verdict TEXT NOT NULL,
    rule TEXT NOT NULL,
    text TEXT NOT NULL,
    num_nodes INTEGER,
    exclude TEXT NOT NULL,
    resume_from TEXT,
    resume_step BIGINT,
    budget_left INTEGER,
    expected_start TEXT,
    planned_no INTEGER,
    failure_class TEXT,
    diagnosis TEXT,
    CONSTRAINT fk_decision_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_decision_run_id ON decision (run_id);

CREATE TABLE drain_record (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    node TEXT NOT NULL,
    cluster TEXT NOT NULL,
    reason TEXT NOT NULL,
    drained_at TEXT NOT NULL,
    run_id INTEGER,
    reason_user TEXT NOT NULL,
    state TEXT NOT NULL,
    CONSTRAINT fk_drain_record_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_drain_record_node ON drain_record (node);

CREATE TABLE event (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    run_id INTEGER,
    allocation_no INTEGER,
    node TEXT,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT,
    CONSTRAINT fk_event_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_event_at ON event (at);

CREATE INDEX ix_event_run_id ON event (run_id);

CREATE TABLE decision_node (
    decision_id INTEGER NOT NULL,
    node TEXT NOT NULL,
    at_fault BOOLEAN NOT NULL,
    measure TEXT,
    reason TEXT NOT NULL,
    avoid_until TEXT,
    CONSTRAINT pk_decision_node PRIMARY KEY (decision_id, node),
    CONSTRAINT fk_decision_node_decision_id_decision FOREIGN KEY(decision_id) REFERENCES decision (id)
);

CREATE INDEX ix_decision_node_node ON decision_node (node);

CREATE TRIGGER event_forbids_update BEFORE UPDATE ON event
BEGIN
    SELECT RAISE(ABORT, 'event is append-only');
END;

CREATE TRIGGER event_forbids_delete BEFORE DELETE ON event
BEGIN
    SELECT RAISE(ABORT, 'event is append-only');
END;

CREATE TRIGGER decision_forbids_update BEFORE UPDATE ON decision
BEGIN
    SELECT RAISE(ABORT, 'decision is append-only');
END;

CREATE TRIGGER decision_forbids_delete BEFORE DELETE ON decision
BEGIN
    SELECT RAISE(ABORT, 'decision is append-only');
END;

CREATE TRIGGER decision_node_forbids_update BEFORE UPDATE ON decision_node
BEGIN
    SELECT RAISE(ABORT, 'decision_node is append-only');
END;

CREATE TRIGGER decision_node_forbids_delete BEFORE DELETE ON decision_node
BEGIN
    SELECT RAISE(ABORT, 'decision_node is append-only');
END;

CREATE VIEW allocation_time AS
SELECT
    run_id,
    no,
    ROUND((julianday(started_at) - julianday(submitted_at)) * 86400.0, 3) AS queue_wait_s,
    ROUND((julianday(first_step_at) - julianday(started_at)) * 86400.0, 3) AS start_up_s,
    ROUND((julianday(noticed_at) - julianday(ended_at)) * 86400.0, 3) AS detection_s
FROM allocation;

CREATE VIEW avoided_now AS
SELECT node, run_id, until, reason, created_at
FROM avoid
WHERE lifted_at IS NULL AND until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now');
