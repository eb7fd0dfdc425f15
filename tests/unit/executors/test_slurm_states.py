"""The answers of squeue, sacct and sbatch."""

from __future__ import annotations

import pytest

from knowngood.executors import slurm_states
from knowngood.executors.job import FailureCause, JobState


@pytest.mark.parametrize(
    ("state", "reason", "wanted", "cause"),
    [
        ("PENDING", "Resources", JobState.QUEUED, None),
        ("PENDING", "QOSGrpCpuLimit", JobState.QUEUED, None),
        ("PENDING", "QOSMaxCpuPerJobLimit", JobState.REFUSED, FailureCause.QUOTA),
        ("PENDING", "AssocMaxCpuMinutesPerJobLimit", JobState.REFUSED, FailureCause.QUOTA),
        ("PENDING", "PartitionTimeLimit", JobState.REFUSED, FailureCause.ENGINE),
        ("PENDING", "BadConstraints", JobState.REFUSED, FailureCause.NO_NODE),
        ("REQUEUED", "None", JobState.QUEUED, None),
        ("RUNNING", "None", JobState.RUNNING, None),
        ("COMPLETING", "None", JobState.RUNNING, None),
        ("COMPLETED", "None", JobState.ENDED, None),
        ("A_STATE_TO_COME", "None", JobState.RUNNING, None),
        ("RUNNING", "BadConstraints", JobState.RUNNING, None),
        ("CANCELLED", "InvalidAccount", JobState.CANCELLED, None),
        ("CANCELLED by 0", "None", JobState.CANCELLED, None),
        ("FAILED", "NonZeroExitCode", JobState.FAILED, FailureCause.CRASH),
        ("TIMEOUT", "TimeLimit", JobState.FAILED, FailureCause.TIME_LIMIT),
        ("OUT_OF_MEMORY", "OutOfMemory", JobState.FAILED, FailureCause.MEMORY),
        ("NODE_FAIL", "NodeDown", JobState.FAILED, FailureCause.NODE),
        ("BOOT_FAIL", "None", JobState.FAILED, FailureCause.NODE),
    ],
)
def test_states_of_slurm(state, reason, wanted, cause):
    times = "2026-11-21T14:00:00|2026-11-21T14:00:05|2026-11-21T14:01:05"
    ((place, record),) = slurm_states.parse_squeue(f"12|3|{state}|{reason}|n1|{times}\n")
    assert place == ("12", 3)
    status = slurm_states.status_from_record(record)
    assert (status.state, status.cause) == (wanted, cause)
    ((_, accounted),) = slurm_states.parse_sacct(f"12_3|{state}|{reason}|n1|{times}\n")
    assert accounted == record


def test_times_are_those_of_the_cluster():
    ((_, record),) = slurm_states.parse_squeue(
        "1|0|COMPLETED|None|n1|2026-11-21T14:00:00|2026-11-21T14:00:05|2026-11-21T14:01:05"
    )
    assert (record.queued, record.ran) == (5, 60)
    ((_, record),) = slurm_states.parse_squeue("1|0|PENDING|Resources||2026-11-21T14:00:00|N/A|N/A")
    assert (record.queued, record.ran, record.node) == (None, None, None)
    times = "2026-11-21T14:00:00|2026-11-21T14:00:05|2026-11-21T16:00:00"  # the end is when its time limit is reached
    ((_, record),) = slurm_states.parse_squeue(f"1|0|RUNNING|None|n1|{times}")
    assert (record.queued, record.ran) == (5, None)
    ((_, record),) = slurm_states.parse_sacct(f"1_0|CANCELLED+|None|n1|{times}")
    assert slurm_states.status_from_record(record).state is JobState.CANCELLED
    times = "2026-11-21T14:00:00|2026-11-21T13:59:58|2026-11-21T14:01:00"  # the clock was set back
    ((_, record),) = slurm_states.parse_squeue(f"1|0|COMPLETED|None|n1|{times}")
    assert (record.queued, record.ran) == (0, 62)
    assert list(slurm_states.parse_squeue("garbage\n1|2\n")) == []
    assert list(slurm_states.parse_sacct("1_[2-5]|PENDING|None|None assigned|x|Unknown|Unknown\n")) == []


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        (
            "sbatch: error: invalid partition specified: nope\nsbatch: error: Invalid partition name specified",
            FailureCause.ENGINE,
        ),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", FailureCause.NO_NODE),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            FailureCause.NO_NODE,
        ),
        (
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit",
            FailureCause.QUOTA,
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
            FailureCause.ENGINE,
        ),
    ],
)
def test_refusals_of_sbatch(record, cause):
    status = slurm_states.status_from_refusal(record)
    assert (status.state, status.cause) == (JobState.REFUSED, cause)
    assert "sbatch: error" not in status.text
    assert not slurm_states.is_unanswered(record)
    assert slurm_states.is_unanswered("sbatch: error: Batch job submission failed: Unable to contact slurm controller")
