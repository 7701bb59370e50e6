"""What a start does to a training: small trainings over many fields, arms that set the initial weights, a runner."""
