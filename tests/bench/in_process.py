"""Jobs of a bench in this process, for tests of what a bench computes.

A process for each job takes seconds to start. What the processes are for, to survive and to report
models that fail, is tested with real ones in `test_bench` and `test_bench_interrupted`.
"""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import pytest

from powerphase.bench import Job, JobProcess, Outcome, processes, run_job


class InProcessJob(JobProcess):
    """Does the job when it is polled; exceptions end the bench."""

    def __init__(self, job: Job, *options: Any) -> None:
        self.progress: Mapping[str, Any] = {}
        self._job, self._start = Job.from_json(job.to_json()), perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._start

    def poll(self) -> Outcome:
        messages: list[dict[str, Any]] = []
        answer = run_job(self._job, messages.append)
        return Outcome(self.seconds, messages[0]["hardware"], answer)

    def stop(self) -> None: ...


def run_jobs_in_process(patch: pytest.MonkeyPatch) -> None:
    """Start no process for a job until the patch is undone."""
    patch.setattr(processes, "JobProcess", InProcessJob)
