-- Avoided nodes: which, for which run (empty: all), until when and why
SELECT node, run_id, until, reason, created_at
FROM avoided_now
ORDER BY node, run_id NULLS FIRST, until DESC;
