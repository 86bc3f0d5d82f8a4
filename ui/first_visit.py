"""What a new visitor finds in the form: the article's settings, or generated pictures without CIFAR-10."""

import threading
import time
import urllib.error
import urllib.request
from html import escape
from pathlib import Path

from trainer.config import TrainConfig
from trainer.datasets.cifar10 import ARCHIVE, URL
from trainer.datasets.prepare import available
from trainer.presets import PRESETS

DEADLINE = 3.0  # seconds


class Reachability:
    """Whether a server can be reached, asked once in the background so that no page waits for the answer."""

    def __init__(self, url: str):
        self._answer: bool | None = None
        self._deadline = time.monotonic() + DEADLINE
        threading.Thread(target=self._ask, args=(url,), name="reachability", daemon=True).start()

    def _ask(self, url: str) -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=DEADLINE):
                self._answer = True
        except urllib.error.HTTPError:
            self._answer = True  # it answers; what it says is for the download to judge
        except (OSError, ValueError):
            self._answer = False

    @property
    def is_reachable(self) -> bool:
        """The answer; while there is none, yes until the deadline and no after it."""
        if self._answer is not None:
            return self._answer
        return time.monotonic() < self._deadline


class FirstVisit:
    """Decides the preset of a form that nobody has used yet."""

    def __init__(self, data_dir: str):
        self.data_dir = data_dir
        self._server = None if self.has_cifar10 else Reachability(URL)

    @property
    def has_cifar10(self) -> bool:
        return available(TrainConfig(dataset="cifar10", data_dir=self.data_dir))

    def preselected(self) -> tuple[str, str]:
        """(preset, note). The note is HTML, "" where there is nothing to say."""
        if self.has_cifar10 or (self._server and self._server.is_reachable):
            return "tutorial", ""
        folder = str(Path(self.data_dir).resolve())
        assert PRESETS["smoke"].dataset == "shapes"
        return "smoke", (
            "<p>CIFAR-10 is not on this machine and its server cannot be reached, so the form starts with generated "
            f"pictures. To bring CIFAR-10, put <code>{ARCHIVE}</code> into <code>{escape(folder)}</code> and "
            "choose the preset <b>tutorial</b>.</p>"
        )
