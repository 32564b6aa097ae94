"""From a job file to a submission plan, and from the plan to the files of an allocation."""
