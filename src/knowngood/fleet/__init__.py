"""Smoke runs on other machines: jobs, the engines that carry them out, and what becomes of their results."""
