"""Runs that outlive their process: stores, replay, resume, leases, approvals."""
