"""The command line: parse, call, print. No rule lives here."""
