"""Where metrics go: metrics.jsonl always, W&B and the terminal besides. None of them may delay or end training."""
