"""Work on captures, away from the run that they come from."""
