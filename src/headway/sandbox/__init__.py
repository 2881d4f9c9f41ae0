"""Sandboxes: contained machines that run what a model wrote, behind core's SandboxProvider."""
