-- Open actions: intents whose end is not known yet, oldest first
SELECT id, kind, state, run_id, allocation_no, node, planned_at, acted_at, actor, detail
FROM action
WHERE state IN ('planned', 'acting', 'unknown')
ORDER BY id;
