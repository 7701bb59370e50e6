"""The one error that users of the experiments see: what was received, what was expected, what to do."""


class ExperimentError(Exception):
    """An unknown experiment or scale, a setting that does not exist, or data that is missing or of another schema."""
