"""Estimates and their confidence intervals: ratios by block, resampling, histograms."""
