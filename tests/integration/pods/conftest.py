"""The model, and who asks for it, as the director's own tests have them."""

from tests.integration.director.conftest import caller, folder, gate, tally

__all__ = ("caller", "folder", "gate", "tally")
