"""One pure train step, the state it moves, and the loop around it."""
