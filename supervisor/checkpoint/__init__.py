"""Finds, verifies, chooses and prunes checkpoints: standard library only, and never torch.

``names`` reads step and attempt from a directory's name, ``dcp`` judges one directory in the layout of
torch.distributed.checkpoint (one module per on-disk format, all with the interface in ``formats``),
``pickles`` and ``inert`` read its pickled metadata without running it, ``choice`` finds and chooses,
``retention`` removes. It trusts nothing that it reads and knows neither Slurm nor the ledger.
"""
