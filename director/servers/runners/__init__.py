"""How a prediction is started, followed and stopped on each kind of model server."""
