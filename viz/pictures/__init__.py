"""Pictures for the notes, drawn from real records: `python -m viz.pictures` writes them all."""
