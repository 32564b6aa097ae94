-- Lost time in seconds: waiting in the queue, starting up, failing unnoticed; per allocation, then per run
SELECT
    l.run_id,
    r.name,
    l.allocation,
    l.queue_wait_s,
    l.start_up_s,
    l.detection_s,
    l.lost_s
FROM (
    SELECT
        run_id,
        no AS allocation,
        queue_wait_s,
        start_up_s,
        detection_s,
        COALESCE(queue_wait_s, 0) + COALESCE(start_up_s, 0) + COALESCE(detection_s, 0) AS lost_s
    FROM allocation_time
    UNION ALL
    -- The sums of a run: no allocation number.
    SELECT
        run_id,
        NULL,
        SUM(queue_wait_s),
        SUM(start_up_s),
        SUM(detection_s),
        COALESCE(SUM(queue_wait_s), 0) + COALESCE(SUM(start_up_s), 0) + COALESCE(SUM(detection_s), 0)
    FROM allocation_time
    GROUP BY run_id
) AS l
JOIN run AS r ON r.id = l.run_id
ORDER BY l.run_id, l.allocation NULLS LAST;
