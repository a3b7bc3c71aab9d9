"""The experiments of this slice."""

from __future__ import annotations

from howfar.experiments.replication.cluster.report import ClusterExperiment
from howfar.experiments.replication.crash.report import Crash
from howfar.experiments.replication.fallback.report import Fallback
from howfar.experiments.replication.report import ReplicationExperiment

EXPERIMENTS = (ClusterExperiment(), ReplicationExperiment(), Crash(), Fallback())
