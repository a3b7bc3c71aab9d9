"""Estimates and their intervals: ratios by block, resampling, histograms."""
