"""The contract of the API as a document: what each route takes and answers, in OpenAPI 3.1.

A table beside the routes, by subject. Never decides what a handler does: tests hold the two together.
"""
