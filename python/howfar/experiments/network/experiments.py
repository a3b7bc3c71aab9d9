"""The experiments of this slice."""

from __future__ import annotations

from howfar.experiments.network.bandwidth.report import BandwidthExperiment
from howfar.experiments.network.compression.report import CompressionExperiment
from howfar.experiments.network.encryption.report import EncryptionExperiment
from howfar.experiments.network.hops.report import Hops
from howfar.experiments.network.latency.report import LatencyExperiment

EXPERIMENTS = (Hops(), LatencyExperiment(), CompressionExperiment(), EncryptionExperiment(), BandwidthExperiment())
