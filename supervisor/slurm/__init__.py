"""The only room that talks to Slurm: one Protocol, its adapters, and a simulated cluster."""
