"""The documentation site: MkDocs builds it, and the parts of its reference are made from the code."""
