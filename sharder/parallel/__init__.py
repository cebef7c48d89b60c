"""Devices: the environment of a worker, the mesh, and who holds which slice."""
