"""The config groups. `train.yaml` and `evaluate.yaml` are the commands; each folder is a group, each file in it an option.

The first comment line of an option, and the comment behind a group or key in the command's file, are what `--help` shows.
"""
