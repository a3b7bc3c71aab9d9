"""The experiment on web pages, for the registry of experiments."""

from __future__ import annotations

from howfar.experiments.page.report import Pages

EXPERIMENTS = (Pages(),)
