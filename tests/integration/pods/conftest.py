"""Provide the model and the caller of the director's own tests."""

from tests.integration.execution.conftest import caller, folder, gate, tally

__all__ = ("caller", "folder", "gate", "tally")
