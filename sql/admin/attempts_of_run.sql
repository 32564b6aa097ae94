-- Attempts of one run (parameter run: its number), first to last
SELECT
    a.no,
    a.job_id,
    a.state,
    a.slurm_state,
    a.failure_class,
    a.num_nodes,
    a.nodes,
    a.excluded,
    a.resume_step,
    a.last_step,
    a.submitted_at,
    a.started_at,
    a.first_step_at,
    a.ended_at,
    a.noticed_at
FROM allocation AS a
WHERE a.run_id = :run
ORDER BY a.no;
