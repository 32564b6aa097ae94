-- The ledger's schema on postgresql, for reading. Generated from supervisor/ledger/tables.py
-- by `python -m supervisor.ledger.schema` (a test compares); sql/migrations makes ledgers.

CREATE TABLE lease (
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    acquired_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_lease PRIMARY KEY (name)
);

CREATE TABLE run (
    id BIGSERIAL NOT NULL,
    uid TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    cluster TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    spec_json TEXT NOT NULL,
    folder TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    changed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_run PRIMARY KEY (id),
    CONSTRAINT uq_run_uid UNIQUE (uid)
);

CREATE INDEX ix_run_name ON run (name);

CREATE INDEX ix_run_state ON run (state);

CREATE TABLE action (
    id BIGSERIAL NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    run_id BIGINT,
    allocation_no INTEGER,
    node TEXT,
    token TEXT,
    payload TEXT NOT NULL,
    detail TEXT NOT NULL,
    planned_at TIMESTAMP WITH TIME ZONE NOT NULL,
    acted_at TIMESTAMP WITH TIME ZONE,
    settled_at TIMESTAMP WITH TIME ZONE,
    actor TEXT NOT NULL,
    CONSTRAINT pk_action PRIMARY KEY (id),
    CONSTRAINT uq_action_key UNIQUE (key),
    CONSTRAINT fk_action_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_action_run_id ON action (run_id);

CREATE INDEX ix_action_state ON action (state);

CREATE TABLE allocation (
    run_id BIGINT NOT NULL,
    no INTEGER NOT NULL,
    token TEXT NOT NULL,
    cluster TEXT NOT NULL,
    state TEXT NOT NULL,
    num_nodes INTEGER NOT NULL,
    excluded TEXT NOT NULL,
    resume_from TEXT,
    resume_step BIGINT,
    planned_at TIMESTAMP WITH TIME ZONE NOT NULL,
    job_id BIGINT,
    submitted_at TIMESTAMP WITH TIME ZONE,
    restart_count INTEGER NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    noticed_at TIMESTAMP WITH TIME ZONE,
    nodes TEXT NOT NULL,
    slurm_state TEXT NOT NULL,
    slurm_reason TEXT NOT NULL,
    exit_code BIGINT,
    exit_signal INTEGER,
    first_step_at TIMESTAMP WITH TIME ZONE,
    last_step BIGINT,
    last_step_at TIMESTAMP WITH TIME ZONE,
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
    id BIGSERIAL NOT NULL,
    node TEXT NOT NULL,
    run_id BIGINT,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    reason TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    lifted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_avoid PRIMARY KEY (id),
    CONSTRAINT fk_avoid_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_avoid_node ON avoid (node);

CREATE TABLE decision (
    id BIGSERIAL NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    run_id BIGINT NOT NULL,
    allocation_no INTEGER,
    verdict TEXT NOT NULL,
    rule TEXT NOT NULL,
    text TEXT NOT NULL,
    num_nodes INTEGER,
    exclude TEXT NOT NULL,
    resume_from TEXT,
    resume_step BIGINT,
    budget_left INTEGER,
    expected_start TIMESTAMP WITH TIME ZONE,
    planned_no INTEGER,
    failure_class TEXT,
    diagnosis TEXT,
    CONSTRAINT pk_decision PRIMARY KEY (id),
    CONSTRAINT fk_decision_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_decision_run_id ON decision (run_id);

CREATE TABLE drain_record (
    id BIGSERIAL NOT NULL,
    node TEXT NOT NULL,
    cluster TEXT NOT NULL,
    reason TEXT NOT NULL,
    drained_at TIMESTAMP WITH TIME ZONE NOT NULL,
    run_id BIGINT,
    reason_user TEXT NOT NULL,
    state TEXT NOT NULL,
    CONSTRAINT pk_drain_record PRIMARY KEY (id),
    CONSTRAINT fk_drain_record_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_drain_record_node ON drain_record (node);

CREATE TABLE event (
    id BIGSERIAL NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    run_id BIGINT,
    allocation_no INTEGER,
    node TEXT,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT,
    CONSTRAINT pk_event PRIMARY KEY (id),
    CONSTRAINT fk_event_run_id_run FOREIGN KEY(run_id) REFERENCES run (id)
);

CREATE INDEX ix_event_at ON event (at);

CREATE INDEX ix_event_run_id ON event (run_id);

CREATE TABLE decision_node (
    decision_id BIGINT NOT NULL,
    node TEXT NOT NULL,
    at_fault BOOLEAN NOT NULL,
    measure TEXT,
    reason TEXT NOT NULL,
    avoid_until TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_decision_node PRIMARY KEY (decision_id, node),
    CONSTRAINT fk_decision_node_decision_id_decision FOREIGN KEY(decision_id) REFERENCES decision (id)
);

CREATE INDEX ix_decision_node_node ON decision_node (node);

CREATE FUNCTION forbid_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only';
END
$$;

CREATE TRIGGER event_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON event
FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

CREATE TRIGGER decision_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON decision
FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

CREATE TRIGGER decision_node_forbids_change BEFORE UPDATE OR DELETE OR TRUNCATE ON decision_node
FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();

CREATE VIEW allocation_time AS
SELECT
    run_id,
    no,
    CAST(EXTRACT(EPOCH FROM started_at - submitted_at) AS DOUBLE PRECISION) AS queue_wait_s,
    CAST(EXTRACT(EPOCH FROM first_step_at - started_at) AS DOUBLE PRECISION) AS start_up_s,
    CAST(EXTRACT(EPOCH FROM noticed_at - ended_at) AS DOUBLE PRECISION) AS detection_s
FROM allocation;

CREATE VIEW avoided_now AS
SELECT node, run_id, until, reason, created_at
FROM avoid
WHERE lifted_at IS NULL AND until > CURRENT_TIMESTAMP;
