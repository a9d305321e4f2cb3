"""Requests, the scheduler, retraction, and what drives the pools."""
