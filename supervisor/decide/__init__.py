"""What to do next, pure and total: every (state, cause) has an answer. Reads nothing and asks no clock."""
