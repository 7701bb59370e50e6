"""Front ends: models of other frameworks as modules that can be traced, planned, checked and reported on."""
