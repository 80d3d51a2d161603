"""Run files of requests, line by line, as ordinary predictions: batches of OpenAI's API."""
