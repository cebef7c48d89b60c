"""Starting workers and watching over them. Never imports jax: what watches must not hang with what it watches."""
