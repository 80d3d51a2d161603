"""How a prediction is started, followed and stopped on one kind of model server."""
