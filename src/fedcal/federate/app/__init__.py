"""The app that `fedcal federate` runs. It is copied into the run folder, from which Flower bundles it."""
