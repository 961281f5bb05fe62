"""The one error that anything about a model's files and shapes is reported with."""


class ModelError(ValueError):
    """A model that cannot be served as it is: one line saying what was wrong, the limit, and what to do."""
