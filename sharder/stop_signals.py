"""The signals that ask a run to stop."""

import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def heard() -> list[signal.Signals]:
    """Those that this process is to listen to: all, but for SIGHUP where nohup wished to have it ignored."""
    return [one for one in STOP_SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
