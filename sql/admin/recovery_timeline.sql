-- Recovery timeline of one run (parameter run: its number): when each stage of each allocation was reached
SELECT
    a.no,
    a.job_id,
    a.failure_class,
    a.num_nodes,
    a.resume_step,
    a.last_step,
    a.planned_at,
    s.settled_at AS accepted_at,
    a.submitted_at,
    a.started_at,
    a.first_step_at,
    a.ended_at,
    a.noticed_at,
    (
        SELECT MIN(d.settled_at)
        FROM action AS d
        WHERE d.run_id = a.run_id AND d.allocation_no = a.no AND d.kind = 'drain' AND d.state = 'applied'
    ) AS drained_at
FROM allocation AS a
LEFT JOIN action AS s ON s.run_id = a.run_id AND s.allocation_no = a.no AND s.kind = 'submit'
WHERE a.run_id = :run
ORDER BY a.no;
