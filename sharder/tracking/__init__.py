"""Where metrics go: metrics.jsonl, which is the record; the terminal and W&B besides, which cannot harm a run."""
