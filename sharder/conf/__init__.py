"""The config groups: `train.yaml` and `evaluate.yaml` are the commands, a folder is a group, a file in it an option.

`--help` shows the first comment line of an option, and the comments behind groups and keys in the command's file.
"""
