"""What helps to write a job file: the JSON Schema for editors, and a commented file to start from."""

import json
from typing import Any

from supervisor.domain.spec import JobSpec

SCHEMA_FILE = "job.schema.json"
"""Where the starter's modeline looks for the schema; ``supervise schema > job.schema.json`` writes it."""

_STARTER = """\
# yaml-language-server: $schema={schema}
# The line above gives editors completion and checks; supervise schema > {schema} writes that file.
#
#   supervise submit --dry-run job.yaml    shows script and options, contacts nobody
#   supervise submit job.yaml              submits, and from then on the run is looked after

name: {name}

nodes:
  min: 1                  # fewest nodes that still make sense
  want: 1                 # nodes when all is well
  step: 1                 # sizes between go down by this many
  # spares: 1             # nodes on top, used when one fails; needs spare in recovery.ladder

slurm:                    # sbatch's own names, with _ for -
  # partition: gpu
  # account: my-project
  time: 1-00:00:00        # as sbatch reads it: D-HH:MM:SS; 1:30 is a minute and a half
  # gpus_per_node: 8
  # cpus_per_task: 64     # under torchrun a task is a whole node, under srun one rank
  # mem: 0                # per node; a bare number is MiB, 0 is all of it
  # constraint: a100
  # exclude: node[001-002]
  # extra: {{mail-type: END}}   # any other option of sbatch

launch:
  template: torchrun      # torchrun, srun, or a template of your own
  command: python train.py --checkpoint-dir ckpt     # under torchrun once per rank
  setup: |                # shell lines that run first on every node
    # module load cuda
    # source .venv/bin/activate
  env:
    OMP_NUM_THREADS: 1
  signal: USR1            # told to training processes that handle it ...
  signal_before: 2m       # ... this long before the time limit

# batch:
#   global: 1024          # samples per step at every size; SUPERVISE_MICRO_BATCH and SUPERVISE_ACCUMULATION
#   micro: 8              # follow; only sizes at which this divides are used

checkpoint:
  dir: ckpt               # the newest whole checkpoint in it comes back as SUPERVISE_RESUME_FROM

# progress:
#   first_step_after: 30m
#   stall_after: 10m

# done:
#   file: done.json       # the run is finished when this exists and the exit code is 0
"""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of job files."""
    schema = JobSpec.model_json_schema(by_alias=True)
    nodes = schema["properties"]["nodes"]
    # A lone number, and a lone min or want, are taken for both (Nodes); the models alone do not show that.
    schema["properties"]["nodes"] = {
        "anyOf": [nodes, {"type": "integer", "minimum": 1, "description": "Exactly this many nodes."}]
    }
    schema["$defs"]["Nodes"].pop("required")
    schema["$defs"]["Nodes"]["anyOf"] = [{"required": ["min"]}, {"required": ["want"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "job.yaml of supervise",
    }


def starter(name: str) -> str:
    """Return a commented job file for a run called ``name``; it loads as it is."""
    plain = "".join(character for character in name if character.isprintable())[:200].strip() or "training"
    # A JSON string is a double-quoted scalar of YAML; escapes would split characters above U+FFFF.
    return _STARTER.format(schema=SCHEMA_FILE, name=json.dumps(plain, ensure_ascii=False))
