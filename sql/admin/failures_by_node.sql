-- Failures by node: allocations for which a diagnosis proved the node at fault, by class
SELECT
    f.node,
    f.failure_class,
    COUNT(*) AS failures,
    COUNT(DISTINCT f.run_id) AS runs,
    MAX(f.last_at) AS last_at
FROM (
    -- A failure that several sweeps judged is one failure.
    SELECT n.node, d.failure_class, d.run_id, d.allocation_no, MAX(d.at) AS last_at
    FROM decision_node AS n
    JOIN decision AS d ON d.id = n.decision_id
    WHERE n.at_fault
    GROUP BY n.node, d.failure_class, d.run_id, d.allocation_no
) AS f
GROUP BY f.node, f.failure_class
ORDER BY failures DESC, f.node, f.failure_class;
