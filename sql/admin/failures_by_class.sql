-- Failures by class: how often, on how many runs, how long until a sweep noticed
SELECT
    a.failure_class,
    COUNT(*) AS failures,
    COUNT(DISTINCT a.run_id) AS runs,
    ROUND(CAST(AVG(t.detection_s) AS NUMERIC), 1) AS mean_detection_s,
    MAX(a.ended_at) AS last_ended_at
FROM allocation AS a
JOIN allocation_time AS t ON t.run_id = a.run_id AND t.no = a.no
WHERE a.failure_class IS NOT NULL
GROUP BY a.failure_class
ORDER BY failures DESC, a.failure_class;
