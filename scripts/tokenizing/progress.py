"""Progress on stderr: one live line on a terminal, otherwise a line every few seconds."""

import sys
import time

LIVE_SECONDS, LINE_SECONDS = 0.2, 10.0


def amount(number, noun):
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}{noun}"
    return f"{number:.0f} {noun.strip()}"


def duration(seconds):
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


class Progress:
    """Starts the progress of one stage over `total_bytes`. `found` bytes, done in an earlier run, count for the share but not for
    the rate."""

    def __init__(self, stage, total_bytes, stream=None):
        self.stage, self.total_bytes = stage, total_bytes
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.started = self.shown = time.monotonic()
        self.done_bytes = self.found_bytes = self.tokens = 0

    def add(self, input_bytes, tokens=0, found=False):
        self.done_bytes += input_bytes
        if found:
            self.found_bytes += input_bytes
        else:
            self.tokens += tokens
        now = time.monotonic()
        if now - self.shown >= (LIVE_SECONDS if self.live else LINE_SECONDS):
            self.shown = now
            self.show(now)

    def seconds(self):
        return max(time.monotonic() - self.started, 1e-9)

    def show(self, now):
        elapsed = now - self.started
        text = f"{self.stage}: {100 * self.done_bytes / max(self.total_bytes, 1):.1f}% of {amount(self.total_bytes, 'B')}"
        if self.tokens:
            text += f", {amount(self.tokens, ' tokens')}, {amount(self.tokens / elapsed, ' tokens/s')}"
        here = self.done_bytes - self.found_bytes
        if here > 0:
            text += f", {duration((self.total_bytes - self.done_bytes) * elapsed / here)} left"
        self.say(text)

    def say(self, text):
        self.stream.write(f"\r\x1b[K{text}" if self.live else text + "\n")
        self.stream.flush()

    def close(self):
        if self.live:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
