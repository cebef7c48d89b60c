"""Sharder: trains pi0 in JAX from one device to many hosts, and says where the time goes."""

__version__ = "0.1.0"
