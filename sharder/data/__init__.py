"""Recordings in, batches out: numpy only, no jax."""
