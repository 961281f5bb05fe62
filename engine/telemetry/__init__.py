"""What happened: step records, metrics, traces. Imports no torch."""
